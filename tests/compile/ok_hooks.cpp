#include "support/program_parts.hpp"

// A const method, one that takes less than it could, and one with a default.
struct Watch {
  void after_update(const lockstep::Run& run, lockstep::UpdateOutcome) const { (void)run.state(); }
  void window_begin(lockstep::Run&, int times = 1) { calls += times; }
  int calls = 0;
};

int main() {
  Watch watch;
  const lockstep::HookFunctions functions{.run_end = [](lockstep::Run& run) { run.request_save(); }};
  auto step = [](NetImpl& net, const lockstep::Example& batch) -> lockstep::StepOutput {
    return {.loss = net.forward(batch.data).mean(), .num_samples = batch.data.size(0)};
  };
  lockstep::Trainer trainer(accelerator, model, optimizer, loader, step,
                            {.hooks = {watch, functions, Watch(), lockstep::HookFunctions{}}});
  (void)trainer.train({.epochs = 1});
}
