// Evaluation sets, early stopping, best weights and a test set: a network that is too large for 60 noisy
// points soon learns their noise; the run ends, and what is kept and tested are the weights from before that.
//
// Prints:
//   epoch  0  evaluate  clean/loss 0.693  validation/loss 0.692
//   epoch  0  best      best/clean/loss 0.693  best/validation/loss 0.692
//   epoch  1  evaluate  validation/loss 0.598
//   epoch  1  best      best/validation/loss 0.598
//   epoch  2  evaluate  validation/loss 0.585
//   epoch  2  best      best/validation/loss 0.585
//   epoch  3  evaluate  validation/loss 0.606
//   epoch  4  evaluate  clean/loss 0.316  validation/loss 0.618
//   epoch  5  evaluate  validation/loss 0.640
//   epoch  6  evaluate  validation/loss 0.668
//   epoch  6  evaluate  clean/loss 0.367
//   ended by early_stop after epoch 6; best at update 6
//   test accuracy of the best weights 0.808
//   the model holds them: validation loss 0.585
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Net : nn::Module {
  Net() {
    layers = register_module("layers", nn::Sequential(nn::Linear(2, 64), nn::ReLU(), nn::Linear(64, 64),
                                                      nn::ReLU(), nn::Linear(64, 2)));
  }
  torch::Tensor forward(const torch::Tensor& points) { return layers->forward(points); }
  nn::Sequential layers{nullptr};
};

// Above the diagonal or below; a share `noise` of the answers is wrong.
ls::TensorDataset points(std::int64_t count, double noise) {
  const auto data = torch::randn({count, 2});
  const auto above = data.select(1, 1).gt(data.select(1, 0));
  return ls::TensorDataset(data, above.logical_xor(torch::rand({count}).lt(noise)).to(torch::kLong));
}

// Prints the losses of evaluations.
class LossPrinter : public ls::Sink {
 public:
  void write(const ls::LogEvent& event) override {
    if (event.event != "evaluate" && event.event != "best") return;
    std::printf("epoch %2ld  %-8s", event.epoch, event.event.c_str());
    for (const auto& [name, value] : event.values) {
      if (name.ends_with("loss")) std::printf("  %s %.3f", name.c_str(), value);
    }
    std::printf("\n");
  }
};

int main() {
  ls::Accelerator accelerator({.seed = 2, .device = torch::kCPU});
  ls::DataLoader train_loader(points(60, 0.2), {.batch_size = 20, .shuffle = true, .seed = 2});
  ls::DataLoader validation_loader(points(400, 0.2), {.batch_size = 100});
  ls::DataLoader clean_loader(points(4000, 0), {.batch_size = 100});
  ls::DataLoader test_loader(points(1000, 0.2), {.batch_size = 100});

  auto step = [](Net& net, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = net.forward(batch.data);
    const auto correct = logits.argmax(1).eq(batch.target).sum();
    return {.loss = nn::functional::cross_entropy(logits, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };

  auto net = std::make_shared<Net>();
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  ls::Evaluator evaluator(accelerator, {{"validation", validation_loader}, {"clean", clean_loader}}, step,
                          {.every = {{"clean", {.every = 4}}}});  // epochs, and once at the end
  ls::Evaluator test(accelerator, {{"test", test_loader}}, step);
  ls::RunLogger logger("runs/evaluate_and_stop", {.quiet = true});
  logger.add_sink(std::make_shared<LossPrinter>());
  ls::Trainer trainer(accelerator, net, optimizer, train_loader, step,
                      {.evaluator = &evaluator, .test = &test, .logger = &logger});

  const ls::TrainState state = trainer.train({.epochs = 50,
                                              .evaluate_first = true,
                                              .limit_evaluation_batches = 10,  // of each set
                                              .checkpoint_every = {},          // best weights: in memory
                                              .monitor = ls::Monitor("validation/loss", {.patience = 4}),
                                              .restore_best = true});

  std::printf("ended by %s after epoch %ld; best at update %ld\n", to_string(state.end).c_str(), state.epoch,
              *state.best_step);
  std::printf("test accuracy of the best weights %.3f\n", trainer.test_results()->at("test").at("accuracy"));
  std::printf("the model holds them: validation loss %.3f\n", trainer.evaluate().at("validation").at("loss"));
}
