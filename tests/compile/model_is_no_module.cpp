// expect: lockstep: the model must be a torch::nn::Module
#include "support/program_parts.hpp"

struct Table {
  at::Tensor forward(const at::Tensor& x);
};

int main() {
  Table table;
  auto step = [](Table& table, const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = table.forward(batch.data), .num_samples = 1};
  };
  lockstep::Trainer trainer(accelerator, table, optimizer, loader, step);
  (void)trainer.train({.epochs = 1});
}
