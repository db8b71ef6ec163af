#include "support/program_parts.hpp"

namespace ls = lockstep;

int main() {
  auto step = [](NetImpl& model, const ls::Example& batch) -> ls::StepOutput {
    auto logits = model.forward(batch.data);
    auto correct = logits.argmax(1).eq(batch.target).sum();
    return {.loss = torch::nn::functional::cross_entropy(logits, batch.target),
            .num_samples = batch.target.size(0),
            .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
  };

  ls::AdamW optimizer(ls::weight_decay_groups(*model, 0.05), {.lr = 1e-3});
  ls::Evaluator evaluator(accelerator, {{"validation", loader}, {"test", loader}}, step);
  ls::RunLogger logger("runs/example", {.is_main_process = accelerator.is_main_process()});
  ls::Trainer trainer(accelerator, model, optimizer, loader, step,
                      {.evaluator = &evaluator, .ema_decay = 0.999, .logger = &logger});

  ls::TrainConfig config{.epochs = 10, .max_grad_norm = 1.0, .monitor = ls::Monitor("validation/loss")};
  trainer.set_scheduler(ls::WarmupDecay{.total_steps = trainer.planned_steps(config),
                                        .warmup_steps = trainer.updates_per_epoch()});

  ls::StopRequest stop;
  auto signals = stop.catch_signals();
  auto state =
      trainer.train(config, {.checkpoint_dir = "runs/example/checkpoints", .resume_from = ls::latest, .stop = &stop});
  if (!state.stop_reason) trainer.save_model("runs/example/model.safetensors", ls::Weights::ema);
}
