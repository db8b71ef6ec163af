// expect: lockstep: a Step is called as step(module&, const Batch&), and this one cannot be
#include "support/program_parts.hpp"

int main() {
  auto step = [](const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = model->forward(batch.data), .num_samples = 1};
  };
  lockstep::Trainer trainer(accelerator, model, optimizer, loader, step);
  (void)trainer.train({.epochs = 1});
}
