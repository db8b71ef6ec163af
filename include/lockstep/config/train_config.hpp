// The settings of one call to Trainer::train().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/interval.hpp"
#include "lockstep/config/monitor.hpp"

namespace lockstep {

/// Limits are cumulative over resumes and over several train() calls.
struct TrainConfig {
  /// Completed epochs at which the run ends.
  std::int64_t epochs = 0;
  /// Successful updates at which the run ends: exact, also inside an epoch. Unset: no limit.
  std::optional<std::int64_t> max_steps = {};
  /// Updates between two training log lines.
  std::int64_t log_every = 10;
  /// Unset: no evaluation at all.
  std::optional<Interval> evaluate_every = Interval{.every = 1, .unit = Interval::Unit::epoch};
  /// Unset: only last, best and final.
  std::optional<Interval> checkpoint_every = Interval{.every = 1, .unit = Interval::Unit::epoch};
  /// The newest ones that are kept, besides best, last and final. Unset: all.
  std::optional<std::int64_t> keep_checkpoints = {};
  /// Clip gradients to this global norm. Unset: the norm is measured and logged only.
  std::optional<double> max_grad_norm = {};
  /// What decides about the best model and about stopping early. Unset: neither happens.
  std::optional<Monitor> monitor = {};
};

/// Every mistake in the settings themselves, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const TrainConfig& config);

}  // namespace lockstep
