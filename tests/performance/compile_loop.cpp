// The program that compile_trainer.cpp is compared with: the same model trained by hand, with only those of
// Torch's headers that it needs.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

namespace nn = torch::nn;

struct NetImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return out->forward(torch::relu(in->forward(x))); }
  nn::Linear in = register_module("in", nn::Linear(16, 32));
  nn::Linear out = register_module("out", nn::Linear(32, 4));
};
TORCH_MODULE(Net);

int main() {
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto data = torch::randn({1000, 16});
  const auto target = torch::randint(4, {1000}, torch::kLong);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (std::int64_t i = 0; i < 1000; i += 50) {
      optimizer.zero_grad();
      const auto logits = net->forward(data.narrow(0, i, 50));
      nn::functional::cross_entropy(logits, target.narrow(0, i, 50)).backward();
      optimizer.step();
    }
  }
}
