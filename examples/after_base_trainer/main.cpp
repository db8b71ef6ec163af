// What BaseTrainer's train() does, with a model of words: validation before the first epoch, the norm of the
// gradient measured whether it is clipped or not, no decay for biases and *_emb tables, the best weights by a score
// that is maximized, patience that counts from an epoch on, the test on the best weights, and the final results.
// Each sample is a sequence of 13 words of 40; are most of them from the first half of the dictionary?
//
// Prints:
//   epoch 0: val accuracy 0.483
//   epoch 1: val accuracy 0.813, train/grad_norm 0.184
//   epoch 2: val accuracy 0.907, train/grad_norm 0.164
//   epoch 3: val accuracy 0.977, train/grad_norm 0.118
//   epoch 4: val accuracy 0.987, train/grad_norm 0.092
//   epoch 5: val accuracy 0.993, train/grad_norm 0.073
//   epoch 6: val accuracy 1.000, train/grad_norm 0.071
//   epoch 7: val accuracy 1.000, train/grad_norm 0.051
//   epoch 8: val accuracy 1.000, train/grad_norm 0.048
//   epoch 9: val accuracy 1.000, train/grad_norm 0.040
//   early_stop after epoch 9; best/val/avg 1.000 at update 120
//   test accuracy 0.996
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Classifier : nn::Module {
  nn::Embedding word_emb = register_module("word_emb", nn::Embedding(40, 16));
  nn::Linear head = register_module("head", nn::Linear(16, 2));
  torch::Tensor forward(const torch::Tensor& words) { return head->forward(word_emb->forward(words).mean(1)); }
};

ls::TensorDataset sentences(std::int64_t count) {
  const auto words = torch::randint(40, {count, 13});
  return ls::TensorDataset(words, words.lt(20).sum(1).gt(6).to(torch::kLong));
}

// log_training_results() and the epoch's lines.
struct Report {
  void after_update(ls::Run&, const ls::UpdateOutcome& outcome) {
    grad_norms += outcome.gradient_norm;
    ++updates;
  }
  void evaluation_end(ls::Run& run, ls::Weights, const ls::EvaluationResults& results) {
    if (!results.contains("val")) return;
    std::printf("epoch %ld: val accuracy %.3f", run.state().epoch, results.at("val").at("accuracy"));
    if (updates > 0) std::printf(", train/grad_norm %.3f", grad_norms / updates);
    std::printf("\n");
    grad_norms = updates = 0;
  }
  double grad_norms = 0, updates = 0;
};

int main() {
  ls::Accelerator accelerator({.seed = 5, .device = torch::kCPU});
  auto [train_loader, val_loader] =
      ls::make_loaders(sentences(600), sentences(300), {.batch_size = 30, .evaluation_batch_size = 100, .seed = 5});
  ls::DataLoader test_loader(sentences(500), {.batch_size = 100});

  auto step = [](Classifier& model, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = model.forward(batch.data);
    const auto correct = logits.argmax(1).eq(batch.target).sum();
    return {.loss = nn::functional::cross_entropy(logits, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };

  auto model = std::make_shared<Classifier>();
  const auto no_weight_decay = [](const std::string& name, const torch::Tensor& parameter) {
    return parameter.dim() < 2 || name.find("_emb") != std::string::npos;
  };
  ls::AdamW optimizer(ls::weight_decay_groups(*model, 0.05, no_weight_decay), {.lr = 0.02});
  ls::Evaluator val(accelerator, {{"val", val_loader}}, step);
  ls::Evaluator test(accelerator, {{"test", test_loader}}, step);
  ls::RunLogger logger("runs/after_base_trainer", {.quiet = true});
  ls::Trainer trainer(accelerator, model, optimizer, train_loader, step,
                      {.evaluator = &val, .test = &test, .logger = &logger, .hooks = {Report()}});

  const ls::TrainState state = trainer.train(
      {.epochs = 30,
       .evaluate_first = true,
       .monitor = ls::Monitor("val/accuracy",
                              {.direction = ls::Direction::maximize, .patience = 3, .start_epoch = 2}),
       .restore_best = true},
      {.checkpoint_dir = "runs/after_base_trainer/checkpoints"});
  std::printf("%s after epoch %ld; best/val/avg %.3f at update %ld\n", to_string(state.end).c_str(), state.epoch,
              *state.best_metric, *state.best_step);
  std::printf("test accuracy %.3f\n", trainer.test_results()->at("test").at("accuracy"));
}
