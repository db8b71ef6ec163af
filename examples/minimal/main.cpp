// A whole training program: is a point in the square nearer to the centre than 0.8? It keeps its checkpoints
// in runs/points; killed, or run again, it goes on from the newest.
//
// Prints:
//   validation accuracy 0.952 after 160 updates
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <iostream>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  Net() {
    layers = register_module("layers", nn::Sequential(nn::Linear(2, 32), nn::Tanh(), nn::Linear(32, 2)));
  }
  torch::Tensor forward(const torch::Tensor& points) { return layers->forward(points); }
  nn::Sequential layers{nullptr};
};

ls::TensorDataset random_points(std::int64_t count) {
  const auto points = torch::rand({count, 2}) * 2 - 1;
  return ls::TensorDataset(points, points.norm(2, 1).lt(0.8).to(torch::kLong));
}

int main() {
  ls::Accelerator accelerator({.gradient_accumulation_steps = 2, .seed = 7, .device = torch::kCPU});
  ls::DataLoader train_loader(random_points(2000), {.batch_size = 50, .shuffle = true, .seed = 7});
  ls::DataLoader validation_loader(random_points(500), {.batch_size = 500});

  auto step = [](Net& net, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = net.forward(batch.data);
    const auto correct = logits.argmax(1).eq(batch.target).sum();
    return {.loss = nn::functional::cross_entropy(logits, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };

  auto net = std::make_shared<Net>();
  ls::AdamW optimizer(ls::weight_decay_groups(*net, 0.01), {.lr = 0.05});
  ls::Evaluator evaluator(accelerator, {{"validation", validation_loader}}, step);
  ls::Trainer trainer(accelerator, net, optimizer, train_loader, step,
                      {.evaluator = &evaluator, .ema_decay = 0.9});

  const ls::TrainConfig config{.epochs = 8, .max_grad_norm = 1.0};
  trainer.set_scheduler(ls::WarmupDecay{.total_steps = trainer.planned_steps(config),
                                        .warmup_steps = trainer.updates_per_epoch()});
  const ls::TrainState state =
      trainer.train(config, {.checkpoint_dir = "runs/points", .resume_from = ls::latest});

  const double accuracy = trainer.evaluate(ls::Weights::ema).at("validation").at("accuracy");
  std::cout << "validation accuracy " << accuracy << " after " << state.step << " updates\n";
}
