// expect: lockstep: a Step returns a StepOutput{.loss, .num_samples}; a bare loss has no denominator
#include "support/program_parts.hpp"

int main() {
  auto step = [](NetImpl& net, const lockstep::Example& batch) { return net.forward(batch.data).mean(); };
  lockstep::Trainer trainer(accelerator, model, optimizer, loader, step);
  (void)trainer.train({.epochs = 1});
}
