// Learning rates: three schedules over three groups of parameters, one of them with a rate of its own. The
// rate of a group at an update is its base rate times the schedule's factor.
//
// Prints:
//   warm-up, then half a cosine
//     update 10  lr/decay 0.000900  lr/no_decay 0.000900  lr/head 0.009000
//     update 20  lr/decay 0.000794  lr/no_decay 0.000794  lr/head 0.007939
//     update 30  lr/decay 0.000297  lr/no_decay 0.000297  lr/head 0.002966
//     update 40  lr/decay 0.000003  lr/no_decay 0.000003  lr/head 0.000027
//   one cycle
//     update 10  lr/decay 0.000480  lr/no_decay 0.000480  lr/head 0.004804
//     update 20  lr/decay 0.001000  lr/no_decay 0.001000  lr/head 0.010000
//     update 30  lr/decay 0.000500  lr/no_decay 0.000500  lr/head 0.005000
//     update 40  lr/decay 0.000000  lr/no_decay 0.000000  lr/head 0.000000
//   a tenth after an evaluation that is not better by 40 %
//     update 10  lr/decay 0.001000  lr/no_decay 0.001000  lr/head 0.010000
//     update 10  validation/loss 3.077087
//     update 20  lr/decay 0.001000  lr/no_decay 0.001000  lr/head 0.010000
//     update 20  validation/loss 2.283903
//     update 30  lr/decay 0.000100  lr/no_decay 0.000100  lr/head 0.001000
//     update 30  validation/loss 2.216217
//     update 40  lr/decay 0.000010  lr/no_decay 0.000010  lr/head 0.000100
//     update 40  validation/loss 2.209492
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  nn::Linear body = register_module("body", nn::Linear(4, 16));
  nn::Linear head = register_module("head", nn::Linear(16, 1));
  torch::Tensor forward(const torch::Tensor& x) { return head->forward(torch::tanh(body->forward(x))); }
};

// Matrices of the body decay, its biases do not, and the head learns ten times as fast.
ls::ParameterGroups groups_of(const Net& net) {
  auto groups = ls::weight_decay_groups(*net.body, 0.01);
  groups.push_back({.name = "head", .parameters = ls::trainable_parameters(*net.head), .lr = 0.01});
  return groups;
}

ls::TensorDataset noisy_sums(std::int64_t count) {
  const auto data = torch::randn({count, 4});
  return ls::TensorDataset(data, data.sum(1, /*keepdim=*/true) + 0.1 * torch::randn({count, 1}));
}

// Prints the rates from the log, and what the plateau follows.
class RatePrinter : public ls::Sink {
 public:
  void write(const ls::LogEvent& event) override {
    if (event.event != "train" && event.event != "evaluate") return;
    std::printf("  update %2ld", event.step);
    for (const auto& [name, value] : event.values) {
      if (name.starts_with("lr/") || name == "validation/loss") std::printf("  %s %.6f", name.c_str(), value);
    }
    std::printf("\n");
  }
};

void train(const char* title, const ls::Schedule& schedule) {
  ls::Accelerator accelerator({.seed = 5, .device = torch::kCPU});
  ls::DataLoader train_loader(noisy_sums(160), {.batch_size = 16, .shuffle = true, .seed = 5});
  ls::DataLoader validation_loader(noisy_sums(160), {.batch_size = 160});
  auto step = [](Net& net, const ls::Example& batch) -> ls::StepOutput {
    return {.loss = torch::mse_loss(net.forward(batch.data), batch.target),
            .num_samples = batch.data.size(0)};
  };

  auto net = std::make_shared<Net>();
  ls::AdamW optimizer(groups_of(*net), {.lr = 0.001});
  ls::Evaluator evaluator(accelerator, {{"validation", validation_loader}}, step);
  ls::RunLogger logger("runs/schedule_and_groups", {.quiet = true});
  logger.add_sink(std::make_shared<RatePrinter>());
  ls::Trainer trainer(accelerator, net, optimizer, train_loader, step,
                      {.evaluator = &evaluator, .logger = &logger});
  trainer.set_scheduler(schedule);

  std::printf("%s\n", title);
  ls::TrainConfig config{.epochs = 4, .log_every = 10, .checkpoint_every = {}};  // an epoch is 10 updates
  if (!schedule.plateau()) config.evaluate_every = {};
  trainer.train(config);
}

int main() {
  train("warm-up, then half a cosine", ls::WarmupDecay{.total_steps = 40, .warmup_steps = 10});
  train("one cycle", ls::OneCycle{.total_steps = 40, .warmup_fraction = 0.5});
  train("a tenth after an evaluation that is not better by 40 %",
        ls::Plateau{.factor = 0.1, .patience = 0, .threshold = 0.4});
}
