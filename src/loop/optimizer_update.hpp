// The one place where gradients become weights.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/loop/accumulation_window.hpp"
#include "lockstep/optim/weight_average.hpp"
#include "optim/optimizer_adapter.hpp"

namespace lockstep {

enum class UpdateResult {
  applied,
  skipped_empty,  ///< no rank had a sample in the window
};

struct UpdateOutcome {
  UpdateResult result = UpdateResult::applied;
  /// The global norm of the mean gradient, before clipping.
  double gradient_norm = 0;
};

/// Divides the window's summed gradients by its samples on all ranks, measures their norm, refuses what is not finite,
/// clips, steps the optimizer, and moves the average. Nothing is changed when it throws or skips.
///
/// A window in which no parameter got a gradient is an update that changes no parameter.
/// Errors: NonFiniteError `non-finite-gradient`, naming the first parameters concerned. Waits for the device.
UpdateOutcome optimizer_update(const AccumulationWindow& window, std::int64_t samples_on_all_ranks,
                               OptimizerAdapter& optimizer, WeightAverage* average,
                               std::optional<double> max_grad_norm);

}  // namespace lockstep
