// What BaseTrainer's train() does, with a model of words: validation before the first epoch, the norm of the
// gradient measured whether it is clipped or not, no decay for biases and *_emb tables, the best weights by a
// score that is maximized, patience that counts from an epoch on, the test on the best weights, and the final
// results. Each sample is a sequence of 13 words of 40; are most of them from the first half of the
// dictionary?
//
// Prints:
//   epoch 0: val accuracy 0.483
//   epoch 1: val accuracy 0.813, train/loss 0.608, train/grad_norm 0.184
//   epoch 2: val accuracy 0.907, train/loss 0.402, train/grad_norm 0.164
//   epoch 3: val accuracy 0.977, train/loss 0.236, train/grad_norm 0.118
//   epoch 4: val accuracy 0.987, train/loss 0.142, train/grad_norm 0.092
//   epoch 5: val accuracy 0.993, train/loss 0.095, train/grad_norm 0.073
//   epoch 6: val accuracy 1.000, train/loss 0.074, train/grad_norm 0.071
//   epoch 7: val accuracy 1.000, train/loss 0.056, train/grad_norm 0.051
//   epoch 8: val accuracy 1.000, train/loss 0.045, train/grad_norm 0.048
//   epoch 9: val accuracy 1.000, train/loss 0.036, train/grad_norm 0.040
//   best/val/accuracy 1.000, best/epoch 6
//   test accuracy 0.996
//   ended by early_stop after epoch 9
//   statistics of 9 updates, weight_norm/total 33.38 at the last
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <cstdio>
#include <memory>

namespace ls = lockstep;
namespace nn = torch::nn;

struct Classifier : nn::Module {
  nn::Embedding word_emb = register_module("word_emb", nn::Embedding(40, 16));
  nn::Linear head = register_module("head", nn::Linear(16, 2));
  torch::Tensor forward(const torch::Tensor& words) {
    return head->forward(word_emb->forward(words).mean(1));
  }
};

ls::TensorDataset sentences(std::int64_t count) {
  const auto words = torch::randint(40, {count, 13});
  return ls::TensorDataset(words, words.lt(20).sum(1).gt(6).to(torch::kLong));
}

struct Report {
  // The line of an epoch; log_epoch_grad_norm().
  void evaluation_end(ls::Run& run, ls::Weights, const ls::EvaluationResults& results) {
    if (!results.contains("val")) return;
    std::printf("epoch %ld: val accuracy %.3f", run.state().epoch, results.at("val").at("accuracy"));
    if (!run.history().empty()) {
      const ls::EpochRecord& epoch = run.history().back();
      std::printf(", train/loss %.3f, train/grad_norm %.3f", *epoch.value("epoch/loss"),
                  *epoch.value("epoch/grad_norm"));
    }
    std::printf("\n");
  }
  // log_training_results().
  void run_end(ls::Run& run) {
    const auto best = run.history().best("val/accuracy", ls::Direction::maximize);
    std::printf("best/val/accuracy %.3f, best/epoch %ld\n", best->value, best->epoch);
    if (const auto& test = run.test_results())
      std::printf("test accuracy %.3f\n", test->at("test").at("accuracy"));
  }
};

int main() {
  ls::Accelerator accelerator({.seed = 5, .device = torch::kCPU});
  auto [train_loader, val_loader] = ls::make_loaders(
      sentences(600), sentences(300), {.batch_size = 30, .evaluation_batch_size = 100, .seed = 5});
  ls::DataLoader test_loader(sentences(500), {.batch_size = 100});

  auto step = [](Classifier& model, const ls::Example& batch) -> ls::StepOutput {
    const auto logits = model.forward(batch.data);
    const auto correct = logits.argmax(1).eq(batch.target).sum();
    return {.loss = nn::functional::cross_entropy(logits, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };

  auto model = std::make_shared<Classifier>();
  ls::AdamW optimizer(ls::weight_decay_groups(*model, 0.05, ls::no_weight_decay({"_emb"})), {.lr = 0.02});
  ls::Evaluator val(accelerator, {{"val", val_loader}}, step);
  ls::Evaluator test(accelerator, {{"test", test_loader}}, step);
  // log_param_grad_stats().
  ls::ParameterStatistics statistics(*model, {.every = 20});
  ls::RunLogger logger("runs/after_base_trainer", {.quiet = true});
  ls::Trainer trainer(accelerator, model, optimizer, train_loader, step,
                      {.evaluator = &val, .test = &test, .logger = &logger, .hooks = {statistics, Report()}});

  const ls::TrainState state = trainer.train(
      {.epochs = 30,
       .evaluate_first = true,
       .monitor = ls::Monitor("val/accuracy",
                              {.direction = ls::Direction::maximize, .patience = 3, .start_epoch = 2}),
       .restore_best = true},
      {.checkpoint_dir = "runs/after_base_trainer/checkpoints"});
  std::printf("ended by %s after epoch %ld\n", to_string(state.end).c_str(), state.epoch);

  std::int64_t measured = 0;
  double weight_norm = 0;
  for (const auto& event : ls::read_run_history(logger.run_dir() / "metrics.jsonl")) {
    for (const auto& [name, value] : event.values) {
      if (name != "weight_norm/total") continue;
      ++measured;
      weight_norm = value;
    }
  }
  std::printf("statistics of %ld updates, weight_norm/total %.2f at the last\n", measured, weight_norm);
}
