// expect: lockstep: a Step's backward must be a method that can be called as backward(const at::Tensor& loss)
#include "support/program_parts.hpp"

struct Step {
  lockstep::StepOutput operator()(NetImpl& net, const lockstep::Example& batch) {
    return {.loss = net.forward(batch.data).mean(), .num_samples = batch.data.size(0)};
  }
  void backward(const lockstep::StepOutput& output);
};

int main() {
  lockstep::Trainer trainer(accelerator, model, optimizer, loader, Step());
  (void)trainer.train({.epochs = 1});
}
