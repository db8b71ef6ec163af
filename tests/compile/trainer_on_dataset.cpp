// expect: lockstep: batches are read from a DataLoader or a range with begin() and end()
#include "support/program_parts.hpp"

int main() {
  lockstep::TensorDataset dataset{at::Tensor()};
  auto step = [](NetImpl& net, const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch.data), .num_samples = 1};
  };
  lockstep::Trainer trainer(accelerator, model, optimizer, dataset, step);
  (void)trainer.train({.epochs = 1});
}
