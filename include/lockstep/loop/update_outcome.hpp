// What became of a window.
#pragma once

namespace lockstep {

enum class UpdateResult {
  applied,
  skipped_empty,     ///< no rank had a sample in the window
  skipped_overflow,  ///< the scaled gradients are not finite; the scale was lowered
};

struct UpdateOutcome {
  UpdateResult result = UpdateResult::applied;
  /// The global norm of the mean gradient, before clipping.
  double gradient_norm = 0;
};

}  // namespace lockstep
