// expect: lockstep: what predicts returns an at::Tensor, or several by name as lockstep::Outputs
#include "support/program_parts.hpp"

int main() {
  (void)lockstep::predict(accelerator, *model, loader,
                          [](NetImpl& net, const lockstep::Example& batch) -> lockstep::StepOutput {
                            return {.loss = net.forward(batch.data).mean(), .num_samples = 1};
                          });
}
