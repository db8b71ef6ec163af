// The same training in fp32, bf16-mixed and fp16-mixed. In fp16 the loss is scaled; the scale starts too high
// here, so that the first windows overflow, are skipped, and bring it down.
//
// Prints:
//   fp32        products in Float     weights in Float  200 windows  200 updates  accuracy 0.985
//   bf16-mixed  products in BFloat16  weights in Float  200 windows  200 updates  accuracy 0.986
//   fp16-mixed  products in Half      weights in Float  200 windows  194 updates  accuracy 0.987
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>
#include <optional>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  Net() {
    layers = register_module("layers", nn::Sequential(nn::Linear(16, 64), nn::GELU(), nn::Linear(64, 4)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};

void train(ls::Precision precision, std::optional<ls::LossScalerOptions> loss_scaler = {}) {
  ls::Accelerator accelerator(
      {.precision = precision, .seed = 2, .device = torch::kCPU, .loss_scaler = loss_scaler});
  const auto data = torch::randn({2000, 16});
  ls::DataLoader loader(ls::TensorDataset(data, data.slice(1, 0, 4).argmax(1)),
                        {.batch_size = 50, .shuffle = true, .seed = 2});

  c10::ScalarType computed_in = torch::kFloat;
  auto step = [&](Net& net, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = net.forward(batch.data);
    const auto correct = logits.argmax(1).eq(batch.target).sum();
    computed_in = logits.scalar_type();
    return {.loss = nn::functional::cross_entropy(logits, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };

  auto net = std::make_shared<Net>();
  ls::AdamW optimizer(ls::weight_decay_groups(*net, 0.01), {.lr = 0.01});
  ls::Evaluator evaluator(accelerator, {{"train", loader}}, step);
  ls::Trainer trainer(accelerator, net, optimizer, loader, step, {.evaluator = &evaluator});
  const ls::TrainState state = trainer.train({.epochs = 5, .checkpoint_every = {}});

  std::printf("%-10s  products in %-8s  weights in %s  %3ld windows  %3ld updates  accuracy %.3f\n",
              to_string(precision).c_str(), c10::toString(computed_in),
              c10::toString(net->parameters()[0].scalar_type()), state.batches, state.step,
              trainer.evaluate().at("train").at("accuracy"));
}

int main() {
  train(ls::Precision::fp32);
  train(ls::Precision::bf16_mixed);
  train(ls::Precision::fp16_mixed, {{.initial_scale = 0x1p24}});
}
