// A user's program as the compiler sees it: how long does it take to compile? See compile_loop.cpp.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <lockstep/lockstep.hpp>

namespace ls = lockstep;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(torch::relu(in->forward(x))); }
  nn::Linear in = register_module("in", nn::Linear(16, 32));
  nn::Linear out = register_module("out", nn::Linear(32, 4));
};
TORCH_MODULE(Net);

int main() {
  ls::Accelerator accelerator;
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto data = torch::randn({1000, 16});
  const auto target = torch::randint(4, {1000}, torch::kLong);
  ls::DataLoader loader(ls::TensorDataset(data, target), {.batch_size = 50});
  auto step = [](NetImpl& model, const ls::Example& batch) -> ls::StepOutput {
    return {.loss = nn::functional::cross_entropy(model.forward(batch.data), batch.target),
            .num_samples = batch.target.size(0)};
  };
  ls::Trainer trainer(accelerator, net, optimizer, loader, step);
  (void)trainer.train({.epochs = 3});
}
