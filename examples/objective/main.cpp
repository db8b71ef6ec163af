// A loss with parameters of its own: two tasks are weighted by how noisy they are found to be. Each loss is
// that of a normal distribution, error² / (2·σ²) + log σ, and log σ is learned with the network.
//
// Source: Kendall, Gal, Cipolla, "Multi-task learning using uncertainty to weigh losses", 2018.
//
// Prints:
//   after epoch  0  sigma 1.00 and 1.00
//   after epoch  1  sigma 0.66 and 1.31
//   after epoch  5  sigma 0.16 and 1.04
//   after epoch 30  sigma 0.12 and 1.01
//   the data were made with 0.10 and 1.00
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  Net() {
    layers = register_module("layers", nn::Sequential(nn::Linear(4, 32), nn::Tanh(), nn::Linear(32, 2)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};

struct Uncertainty : nn::Module {
  torch::Tensor log_sigma = register_parameter("log_sigma", torch::zeros(2));

  torch::Tensor forward(const torch::Tensor& predicted, const torch::Tensor& target) {
    const auto errors = (predicted - target).square().mean(0);
    return (errors * torch::exp(-2 * log_sigma) / 2 + log_sigma).sum();
  }
};

int main() {
  ls::Accelerator accelerator({.seed = 4, .device = torch::kCPU});
  const auto noise = torch::tensor({0.1, 1.0});
  const auto data = torch::randn({4000, 4});
  const auto clean = torch::stack({data.select(1, 0).sin(), data.select(1, 1) * data.select(1, 2)}, 1);
  ls::DataLoader loader(ls::TensorDataset(data, clean + noise * torch::randn({4000, 2})),
                        {.batch_size = 100, .shuffle = true, .seed = 4});

  auto net = std::make_shared<Net>();
  auto uncertainty = std::make_shared<Uncertainty>();
  auto step = [uncertainty](Net& net, const ls::Example& batch) -> ls::StepOutput {
    return {.loss = uncertainty->forward(net.forward(batch.data), batch.target),
            .num_samples = batch.data.size(0)};
  };

  auto groups = ls::weight_decay_groups(*net, 0.0);
  groups.push_back({.name = "uncertainty", .parameters = ls::trainable_parameters(*uncertainty)});
  ls::AdamW optimizer(groups, {.lr = 0.01});
  ls::Trainer trainer(accelerator, net, optimizer, loader, step, {.objective = uncertainty});

  for (const std::int64_t epochs : {0, 1, 5, 30}) {
    if (epochs > 0) trainer.train({.epochs = epochs, .checkpoint_every = {}});
    const auto sigma = uncertainty->log_sigma.detach().exp();
    std::printf("after epoch %2ld  sigma %.2f and %.2f\n", epochs, sigma[0].item<double>(),
                sigma[1].item<double>());
  }
  std::printf("the data were made with 0.10 and 1.00\n");
}
