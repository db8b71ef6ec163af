// An update by the user's optimizer_step, which may ask for loss and gradients more than once.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/loop/accumulation_window.hpp"
#include "lockstep/loop/optimizer_step.hpp"
#include "lockstep/loop/update_outcome.hpp"
#include "loop/optimizer_update.hpp"
#include "loop/shared_run.hpp"

namespace lockstep {

struct ClosureParts {
  torch::optim::Optimizer& optimizer;
  OptimizerAdapter& adapter;
  SharedRun& shared;
  Agreement& agreement;
  const OptimizerStep& optimizer_step;
  /// Runs the Step on a microbatch of the window, from 0.
  const std::function<StepOutput(std::int64_t)>& step_again;
  const Backward& backward;
  /// Called before the sums of another evaluation are made.
  std::function<void()> before_sync;
};

/// Does what optimizer_update() does, with optimizer_step() in the place of the optimizer's. Every rank. `window` was
/// closed, with `samples_on_all_ranks`.
///
/// When it throws, it throws on all ranks, each of which knows that by then; parameters and optimizer state are as before.
/// Errors: those of optimizer_update(), of SharedRun, and whatever user code throws; RankError `closure-calls-differ`.
UpdateOutcome closure_update(const AccumulationWindow& window, std::int64_t samples_on_all_ranks, const ClosureParts& parts,
                             WeightAverage* average, const UpdateSettings& settings);

}  // namespace lockstep
