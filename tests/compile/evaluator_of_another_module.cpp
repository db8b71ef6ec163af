// expect: lockstep: this Evaluator's Step takes another module type than the Trainer's model
#include "support/program_parts.hpp"

struct Other : torch::nn::Module {};

int main() {
  auto step = [](NetImpl& net, const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch.data), .num_samples = 1};
  };
  auto other_step = [](Other&, const lockstep::Example&) -> lockstep::StepOutput { return {}; };
  lockstep::Evaluator evaluator(accelerator, {{"validation", loader}}, other_step);
  lockstep::Trainer trainer(accelerator, model, optimizer, loader, step, {.evaluator = &evaluator});
  (void)trainer.train({.epochs = 1});
}
