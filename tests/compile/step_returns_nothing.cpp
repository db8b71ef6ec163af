// expect: lockstep: a Step returns a lockstep::StepOutput (write -> lockstep::StepOutput after its parameters)
#include "support/program_parts.hpp"

int main() {
  auto step = [](auto& net, const auto& batch) { net.forward(batch.data).mean().backward(); };
  lockstep::Trainer trainer(accelerator, model, optimizer, loader, step);
  (void)trainer.train({.epochs = 1});
}
