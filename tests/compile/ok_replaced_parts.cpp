#include "support/program_parts.hpp"

/// A batch that only its Step knows how to move.
struct Sentences {
  at::Tensor tokens;
};
extern std::vector<Sentences> sentences;

struct Step {
  lockstep::StepOutput operator()(NetImpl& net, const Sentences& batch) {
    return {.loss = net.forward(batch.tokens).mean(), .num_samples = batch.tokens.size(0)};
  }
  [[nodiscard]] Sentences to_device(const Sentences& batch, const lockstep::Placement& where) const {
    return {lockstep::place(batch.tokens, where)};
  }
  void backward(at::Tensor loss) { loss.backward({}, /*retain_graph=*/true); }
};

int main() {
  lockstep::Evaluator evaluator(accelerator, {{"validation", sentences}}, Step());
  lockstep::Trainer trainer(accelerator, model, optimizer, sentences, Step(),
                            {.evaluator = &evaluator,
                             .optimizer_step = [calls = 0](torch::optim::Optimizer& given, auto closure) mutable {
                               ++calls;
                               given.step(closure);
                             }});
  (void)trainer.train({.epochs = 1});
}
