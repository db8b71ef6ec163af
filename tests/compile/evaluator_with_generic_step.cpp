// expect: lockstep: an Evaluator's Step needs explicit parameter types: [](Net& model, const Batch& batch)
#include "support/program_parts.hpp"

int main() {
  auto step = [](auto& net, const auto& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch.data), .num_samples = 1};
  };
  lockstep::Evaluator evaluator(accelerator, {{"validation", loader}}, step);
}
