// expect: lockstep: the Step's second parameter must take what the loader yields (const Batch&)
#include "support/program_parts.hpp"

int main() {
  auto step = [](NetImpl& net, const at::Tensor& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch), .num_samples = 1};
  };
  lockstep::Trainer trainer(accelerator, model, optimizer, loader, step);
  (void)trainer.train({.epochs = 1});
}
