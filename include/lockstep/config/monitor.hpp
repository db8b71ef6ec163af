// Which metric decides about the best model and about stopping early.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/config/train_state.hpp"

namespace lockstep {

enum class Direction { minimize, maximize };

struct MonitorOptions {
  Direction direction = Direction::minimize;
  /// Stop when this many evaluations in a row brought no improvement; unset: never.
  std::optional<std::int64_t> patience = {};
  /// An improvement must be larger than this. Not negative.
  double min_delta = 0;
  /// Completed epochs before which an evaluation without improvement does not count against the patience.
  std::int64_t start_epoch = 0;

  bool operator==(const MonitorOptions&) const = default;
};

/// What an evaluation meant for the run.
struct Verdict {
  bool improved = false;
  bool stop = false;
};

/// Watches one metric, named `set/metric` as the Evaluator reports it, for example `validation/loss`.
class Monitor {
 public:
  explicit Monitor(std::string metric, MonitorOptions options = {});

  [[nodiscard]] const std::string& metric() const { return metric_; }
  [[nodiscard]] const MonitorOptions& options() const { return options_; }

  /// Judges a new value and writes best_metric, best_step and evaluations_without_improvement. A value that
  /// is not finite is never the best and counts as not improved; a tie keeps the earlier one.
  [[nodiscard]] Verdict judge(double value, TrainState& state) const;

  bool operator==(const Monitor&) const = default;

 private:
  std::string metric_;
  MonitorOptions options_;
};

}  // namespace lockstep
