// The example of Fabric's tutorial on a trainer of one's own: its convolutional network for digits, ten
// batches for training and twenty for validation in each of three epochs, a rate that a plateau of the
// validation accuracy lowers, and its callbacks as methods of one hook. The digits are drawn here: ten shapes
// in noise.
//
// Prints:
//   epoch 0: train_loss 2.144, val_loss 1.799, val_accuracy 0.758
//   epoch 1: train_loss 1.177, val_loss 0.471, val_accuracy 0.998
//   epoch 2: train_loss 0.167, val_loss 0.021, val_accuracy 1.000
//   30 batches, 30 optimizer steps; 60 validation batches in 3 validations
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Digits : nn::Module {
  Digits() {
    model = register_module(
        "model", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 5).padding(2)), nn::ReLU(),
                                nn::MaxPool2d(2), nn::Conv2d(nn::Conv2dOptions(16, 32, 5).padding(2)),
                                nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(32 * 7 * 7, 10)));
  }
  torch::Tensor forward(const torch::Tensor& x) { return model->forward(x); }
  nn::Sequential model{nullptr};
};

// Images [count, 1, 28, 28] of ten shapes, the same for every call, with noise over them.
ls::TensorDataset drawn_digits(std::int64_t count) {
  static const auto shapes = torch::nn::functional::interpolate(
      torch::rand({10, 1, 7, 7}),
      torch::nn::functional::InterpolateFuncOptions().scale_factor(std::vector{4.0, 4.0}));
  const auto target = torch::randint(10, {count});
  return ls::TensorDataset(shapes.index_select(0, target) - 0.5 + 0.5 * torch::randn({count, 1, 28, 28}),
                           target);
}

// on_before_backward, on_before_zero_grad, on_train_epoch_end, on_validation_epoch_start,
// on_validation_batch_end and on_validation_epoch_end of a Fabric callback.
class Callbacks {
 public:
  void after_loss(ls::Run&, const ls::StepOutput&) { ++batches_; }
  void after_update(ls::Run&, const ls::UpdateOutcome& outcome) {
    if (outcome.result == ls::UpdateResult::applied) ++updates_;
  }
  void epoch_end(ls::Run& run) {
    const ls::EpochRecord& epoch = run.history().back();
    std::printf("epoch %ld: train_loss %.3f, ", epoch.epoch - 1, *epoch.value("epoch/loss"));
  }
  void evaluation_begin(ls::Run&, ls::Weights) { ++validations_; }
  void evaluation_batch_end(ls::Run&, const std::string&, const ls::StepOutput&) { ++validation_batches_; }
  void evaluation_end(ls::Run&, ls::Weights, const ls::EvaluationResults& results) {
    const auto& values = results.at("val");
    std::printf("val_loss %.3f, val_accuracy %.3f\n", values.at("loss"), values.at("accuracy"));
  }
  void run_end(ls::Run&) {
    std::printf("%ld batches, %ld optimizer steps; %ld validation batches in %ld validations\n", batches_,
                updates_, validation_batches_, validations_);
  }

 private:
  std::int64_t batches_ = 0, updates_ = 0, validation_batches_ = 0, validations_ = 0;
};

int main() {
  ls::Accelerator accelerator({.seed = 4, .device = torch::kCPU});
  auto [train_loader, val_loader] =
      ls::make_loaders(drawn_digits(1280), drawn_digits(1280), {.batch_size = 64, .seed = 4});

  // training_step and validation_step of the tutorial's module.
  auto step = [](Digits& module, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = module.forward(batch.data);
    const auto correct = logits.argmax(-1).eq(batch.target).sum();
    return {.loss = nn::functional::cross_entropy(logits, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };

  auto module = std::make_shared<Digits>();
  torch::optim::Adam optimizer(module->parameters(), torch::optim::AdamOptions(1e-3));
  ls::Evaluator evaluator(accelerator, {{"val", val_loader}}, step);
  ls::Trainer trainer(accelerator, module, optimizer, train_loader, step,
                      {.evaluator = &evaluator, .hooks = {Callbacks()}});
  trainer.set_scheduler(ls::Plateau{.metric = "val/accuracy", .direction = ls::Direction::maximize});
  trainer.train({.epochs = 3, .limit_train_batches = 10, .limit_evaluation_batches = 20},
                {.checkpoint_dir = "checkpoints"});
}
