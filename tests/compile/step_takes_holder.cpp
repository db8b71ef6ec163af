// expect: lockstep: the Step's first parameter must be a reference to the module itself (Net&)
#include "support/program_parts.hpp"

int main() {
  Net net;
  auto step = [](Net net, const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = net->forward(batch.data), .num_samples = 1};
  };
  lockstep::Trainer trainer(accelerator, net, optimizer, loader, step);
  (void)trainer.train({.epochs = 1});
}
