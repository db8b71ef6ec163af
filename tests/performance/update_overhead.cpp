// What the Trainer adds to an update: the same tiny MLP trained by the Trainer and by a loop written by hand with the same
// operations. Run under callgrind by update_overhead.sh.
//
//   update_overhead trainer|loop UPDATES
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/lockstep.hpp"

namespace ls = lockstep;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(torch::relu(in->forward(x))); }
  nn::Linear in = register_module("in", nn::Linear(16, 32));
  nn::Linear out = register_module("out", nn::Linear(32, 4));
};
TORCH_MODULE(Net);

constexpr double ema_decay = 0.999;
constexpr double max_grad_norm = 1.0;
constexpr double lr = 1e-3;

std::vector<ls::Example> make_batches() {
  std::vector<ls::Example> batches;
  for (int i = 0; i < 64; ++i) batches.push_back({torch::randn({32, 16}), torch::randint(4, {32})});
  return batches;
}

// Two things change the number of instructions of the same operations and are no part of the loop: the value of the loss
// (which decides branches inside the kernels) and the layout of the heap. The first is equal here by construction: both
// print the loss of their last update.

double train_by_hand(Net& model, std::vector<ls::Example>& batches, std::int64_t updates) {
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(lr).weight_decay(0.01));
  const ls::WarmupDecay schedule{.total_steps = updates, .warmup_steps = updates / 10};
  const auto parameters = model->parameters();
  std::vector<torch::Tensor> average;
  double loss_sum = 0;
  std::int64_t samples = 0;
  double value = 0;
  for (std::int64_t update = 0; update < updates; ++update) {
    const auto& batch = batches[static_cast<std::size_t>(update) % batches.size()];
    for (const auto& parameter : parameters) parameter.mutable_grad().reset();
    const auto loss = nn::functional::cross_entropy(model->forward(batch.data), batch.target);
    value = loss.item<double>();
    if (!std::isfinite(value)) std::abort();
    loss.backward();
    loss_sum += value * static_cast<double>(batch.target.size(0));
    samples += batch.target.size(0);

    torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> gradients;
    for (const auto& parameter : parameters) gradients.push_back(parameter.grad());
    const double norm = ls::gradient_norm(gradients);
    if (!std::isfinite(norm)) std::abort();
    const double clip = std::min(1.0, max_grad_norm / (norm + 1e-6));
    if (clip != 1) at::_foreach_div_(gradients, 1 / clip);
    for (auto& group : optimizer.param_groups()) group.options().set_lr(lr * schedule.factor(update));
    if (average.empty()) {
      for (const auto& parameter : parameters) average.push_back(parameter.detach().clone());
    }
    optimizer.step();
    at::_foreach_lerp_(average, parameters, 1 - ema_decay);
  }
  std::fprintf(stderr, "mean loss %.6f\n", loss_sum / static_cast<double>(samples));
  return value;
}

double train_with_trainer(Net& model, std::vector<ls::Example>& batches, std::int64_t updates) {
  ls::Accelerator accelerator({.device = torch::kCPU});
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(lr).weight_decay(0.01));
  double value = 0;
  auto step = [&value](NetImpl& net, const ls::Example& batch) -> ls::StepOutput {
    const auto loss = nn::functional::cross_entropy(net.forward(batch.data), batch.target);
    value = loss.item<double>();
    return {.loss = loss, .num_samples = batch.target.size(0)};
  };
  ls::Trainer trainer(accelerator, model, optimizer, batches, step, {.ema_decay = ema_decay});
  trainer.set_scheduler(ls::WarmupDecay{.total_steps = updates, .warmup_steps = updates / 10});
  (void)trainer.train({.epochs = updates, .max_steps = updates, .max_grad_norm = max_grad_norm});
  return value;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  at::set_num_threads(1);
  torch::manual_seed(1);
  auto batches = make_batches();
  Net model;
  const std::int64_t updates = std::atoll(argv[2]);
  const double loss = std::string(argv[1]) == "trainer" ? train_with_trainer(model, batches, updates)
                                                        : train_by_hand(model, batches, updates);
  std::printf("%.17g\n", loss);
}
