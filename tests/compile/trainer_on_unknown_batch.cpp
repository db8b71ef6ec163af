// expect: lockstep: this batch type cannot be moved to a device
#include "support/program_parts.hpp"

struct Sentence {
  at::Tensor tokens, weights;
};

int main() {
  std::vector<Sentence> sentences;
  auto step = [](NetImpl& net, const Sentence& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch.tokens), .num_samples = 1};
  };
  lockstep::Trainer trainer(accelerator, model, optimizer, sentences, step);
  (void)trainer.train({.epochs = 1});
}
