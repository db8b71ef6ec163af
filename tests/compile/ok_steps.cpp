#include "support/program_parts.hpp"

lockstep::StepOutput function(NetImpl& net, const lockstep::Example& batch) {
  return {.loss = net.forward(batch.data).mean(), .num_samples = batch.data.size(0)};
}

struct Callable {
  lockstep::StepOutput operator()(NetImpl& net, lockstep::Example batch) const { return function(net, batch); }
};

int main() {
  const auto train = [](auto step) {
    lockstep::Trainer trainer(accelerator, model, optimizer, loader, step);
    (void)trainer.train({.epochs = 1});
  };
  std::int64_t calls = 0;
  train(function);
  train(Callable());
  train([&calls](auto& net, const auto& batch) -> lockstep::StepOutput {
    ++calls;
    return function(net, batch);
  });
  train([calls](torch::nn::Module& net, const lockstep::Example& batch) mutable {
    ++calls;
    return function(dynamic_cast<NetImpl&>(net), batch);
  });
}
