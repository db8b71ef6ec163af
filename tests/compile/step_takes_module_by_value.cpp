// expect: lockstep: the Step must take the batch as const Batch& (or by value), not Batch&, and the module as Net&
#include "support/program_parts.hpp"

struct Uncopied : NetImpl {
  Uncopied(const Uncopied&) = delete;
};
extern std::shared_ptr<Uncopied> uncopied;

int main() {
  auto step = [](Uncopied net, const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch.data), .num_samples = 1};
  };
  lockstep::Trainer trainer(accelerator, uncopied, optimizer, loader, step);
  (void)trainer.train({.epochs = 1});
}
