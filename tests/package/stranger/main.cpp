// Trains a straight line through points of y = 2x + 1 and exports it.
#include <lockstep/lockstep.hpp>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <filesystem>
#include <iostream>

int main(int, char** argv) {
  lockstep::Accelerator accelerator({.device = at::kCPU});
  torch::nn::Linear line(1, 1);
  lockstep::SGD optimizer(lockstep::weight_decay_groups(*line, 0.0), {.lr = 0.5});
  const auto x = torch::linspace(-1, 1, 64).unsqueeze(1);
  lockstep::DataLoader loader(lockstep::TensorDataset(x, 2 * x + 1), {.batch_size = 8, .shuffle = true});
  auto step = [](torch::nn::LinearImpl& model, const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = (model.forward(batch.data) - batch.target).square().mean(),
            .num_samples = batch.target.size(0)};
  };
  lockstep::Trainer trainer(accelerator, line, optimizer, loader, step);
  const lockstep::TrainState state = trainer.train({.epochs = 20});
  trainer.save_model(std::filesystem::path(argv[0]).parent_path() / "line.safetensors");

  const double slope = line->weight.item<double>();
  const double offset = line->bias.item<double>();
  std::cout << "lockstep " << LOCKSTEP_VERSION << ": " << state.step << " updates, y = " << slope << " x + " << offset
            << '\n';
  return state.step == 160 && std::abs(slope - 2) < 1e-3 && std::abs(offset - 1) < 1e-3 ? 0 : 1;
}
