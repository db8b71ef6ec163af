// A learning rate that falls when a metric stops improving.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/monitor.hpp"

namespace lockstep {

/// Where a Plateau stands. In every checkpoint.
struct PlateauState {
  double factor = 1;  ///< multiplier of the base learning rate
  std::optional<double> best = {};
  std::int64_t bad_evaluations = 0;  ///< in a row, those of a cooldown left out
  std::int64_t cooldown_left = 0;

  bool operator==(const PlateauState&) const = default;
};

/// Multiplies the rate by `factor` after more than `patience` evaluations in a row without improvement, then
/// waits for `cooldown` evaluations before it counts again.
///
/// A relative threshold asks for a value below best * (1 - threshold), or above best * (1 + threshold) to
/// maximize; an absolute one for one below best - threshold, or above best + threshold. Use absolute where
/// the metric can be negative: a relative bound then lies on the wrong side of the best value. Torch:
/// ReduceLROnPlateau with eps = 0.
struct Plateau {
  enum class ThresholdMode { relative, absolute };

  std::string metric = "validation/loss";  ///< `set/metric`, as the Evaluator reports it
  Direction direction = Direction::minimize;
  double factor = 0.1;
  std::int64_t patience = 10;
  double threshold = 1e-4;
  ThresholdMode threshold_mode = ThresholdMode::relative;
  std::int64_t cooldown = 0;
  double minimum_factor = 0;

  /// The state after an evaluation gave `value`. One that is not finite counts as no improvement.
  [[nodiscard]] PlateauState observe(double value, PlateauState state) const;

  bool operator==(const Plateau&) const = default;
};

/// Every mistake in the settings, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const Plateau& schedule);

}  // namespace lockstep
