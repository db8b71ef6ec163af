// expect: lockstep: a Step's to_device must be a method that can be called as to_device(const Batch&, const Placement&)
#include "support/program_parts.hpp"

struct Step {
  lockstep::StepOutput operator()(NetImpl& net, const lockstep::Example& batch) {
    return {.loss = net.forward(batch.data).mean(), .num_samples = batch.data.size(0)};
  }
  at::Tensor to_device(const lockstep::Example& batch, const lockstep::Placement& where);
};

int main() {
  lockstep::Evaluator evaluator(accelerator, {{"validation", loader}}, Step());
  (void)evaluator.run(*model);
}
