// Totals of the training metrics, since the last log line and over the epoch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "lockstep/tensors/metric_totals.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// Of this rank. A window is added once, to what is logged; the epoch gets the sums that lines are made of.
/// Only from an epoch's end until the next line, which covers both epochs, windows are added to the new epoch
/// too.
class TrainingTotals {
 public:
  /// Of one window; `gradient_norm` is that of an update that was applied.
  void add(const MetricTotals& window, const std::optional<double>& gradient_norm);

  /// Since the last line.
  MetricTotals take_line();

  /// Since the last epoch's end. `with_norms`: the norms of its updates are among them, as norm_entry; for
  /// the main process, since a rank that is new on resume does not know them all.
  MetricTotals take_epoch(bool with_norms);

  /// No metric has an empty name.
  static constexpr std::string_view norm_entry = "";

  /// Waits for the device if sums are there.
  [[nodiscard]] NamedTensors state();
  /// Takes what state() gave out of other tensors, none of which must be there.
  void load(const NamedTensors& tensors);

 private:
  MetricTotals line_;
  MetricTotals epoch_;  // what is not in line_, or all of it while line_ holds windows of the epoch before
  bool line_straddles_ = false;
  double norm_sum_ = 0;
  std::int64_t norms_ = 0;
};

}  // namespace lockstep
