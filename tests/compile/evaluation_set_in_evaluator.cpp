// expect: lockstep: this evaluation set yields another batch type than the Step takes
#include "support/program_parts.hpp"

int main() {
  std::vector<at::Tensor> tensors;
  auto step = [](NetImpl& net, const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch.data), .num_samples = 1};
  };
  lockstep::Evaluator evaluator(accelerator, {{"validation", tensors}}, step);
}
