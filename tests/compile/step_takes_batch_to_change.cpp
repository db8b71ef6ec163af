// expect: lockstep: the Step must take the batch as const Batch& (or by value), not Batch&
#include "support/program_parts.hpp"

int main() {
  auto step = [](NetImpl& net, lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch.data), .num_samples = 1};
  };
  lockstep::Trainer trainer(accelerator, model, optimizer, loader, step);
  (void)trainer.train({.epochs = 1});
}
