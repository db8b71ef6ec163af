// Where a run stands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep {

/// Why the last train() call ended. All but `stop_request` are normal ends; `early_stop` is asked for by the
/// monitor or a hook.
enum class EndReason { none, epochs, max_steps, early_stop, stop_request };

/// Progress through the data and successful updates, counted apart. Written by the Trainer alone.
struct TrainState {
  std::int64_t epoch = 0;       ///< completed epochs
  std::int64_t next_batch = 0;  ///< index of the next microbatch inside the current epoch, on each rank
  std::int64_t step = 0;        ///< successful updates
  std::int64_t batches = 0;     ///< microbatches consumed on each rank, those of skipped windows included
  std::int64_t samples = 0;     ///< samples consumed on all ranks, as counted by num_samples
  std::optional<double> best_metric = {};
  std::optional<std::int64_t> best_step = {};
  std::int64_t evaluations_without_improvement = 0;
  /// Set when a stop was requested, with the request's text; unset after a normal end.
  std::optional<std::string> stop_reason = {};
  EndReason end = EndReason::none;

  bool operator==(const TrainState&) const = default;
};

std::string to_string(EndReason reason);

}  // namespace lockstep
