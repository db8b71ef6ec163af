// The program of docs/quickstart.md: learns the sine, logs and saves the run, and goes on where it was
// stopped.
//
// Prints:
//   200 updates; validation loss 0.00922
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  Net() {
    layers = register_module("layers", nn::Sequential(nn::Linear(1, 32), nn::Tanh(), nn::Linear(32, 1)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};

ls::TensorDataset sine(std::int64_t count) {
  const auto x = torch::rand({count, 1}) * 6 - 3;
  return ls::TensorDataset(x, x.sin());
}

int main() {
  ls::Accelerator accelerator({.seed = 1, .device = torch::kCPU});  // first: it seeds what follows
  ls::DataLoader train_loader(sine(1000), {.batch_size = 50, .shuffle = true, .seed = 1});
  ls::DataLoader validation_loader(sine(200), {.batch_size = 200});

  // One batch in; the mean loss, and how many samples it is the mean of, out.
  auto step = [](Net& net, const ls::Example& batch) -> ls::StepOutput {
    return {.loss = torch::mse_loss(net.forward(batch.data), batch.target),
            .num_samples = batch.data.size(0)};
  };

  auto net = std::make_shared<Net>();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  ls::Evaluator evaluator(accelerator, {{"validation", validation_loader}}, step);
  ls::RunLogger logger("runs/sine");
  ls::Trainer trainer(accelerator, net, optimizer, train_loader, step,
                      {.evaluator = &evaluator, .logger = &logger});

  ls::StopRequest stop;
  const auto signals = stop.catch_signals();  // Ctrl-C saves and stops
  const ls::TrainState state = trainer.train(
      {.epochs = 10}, {.checkpoint_dir = "runs/sine", .resume_from = ls::latest, .stop = &stop});
  if (state.stop_reason) return 75;

  trainer.save_model("runs/sine/model.safetensors");
  std::printf("%ld updates; validation loss %.5f\n", state.step,
              trainer.evaluate().at("validation").at("loss"));
}
