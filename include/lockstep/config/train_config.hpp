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
  std::int64_t epochs = 0;                       ///< completed epochs at which the run ends
  std::optional<std::int64_t> max_steps = {};    ///< successful updates at which the run ends, exact, also inside an epoch
  std::int64_t log_every = 10;                   ///< updates between two training log lines
  std::optional<Interval> evaluate_every = Interval{1, Interval::Unit::epoch};    ///< unset: no evaluation at all
  std::optional<Interval> checkpoint_every = Interval{1, Interval::Unit::epoch};  ///< unset: only last, best and final
  std::optional<std::int64_t> keep_checkpoints = {};  ///< newest ones kept; best, last and final are kept besides
  std::optional<double> max_grad_norm = {};      ///< clip by the global norm; unset: measured and logged only
  std::optional<Monitor> monitor = {};
};

/// Every mistake in the settings themselves, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const TrainConfig& config);

}  // namespace lockstep
