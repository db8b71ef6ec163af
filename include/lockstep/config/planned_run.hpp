// What is known of a run before its first update, for a schedule that is made to its measure.
//
//   trainer.set_scheduler([](const lockstep::PlannedRun& run) -> lockstep::Schedule {
//     return lockstep::WarmupDecay{.total_steps = run.planned_steps(), .warmup_steps = 500};
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "lockstep/config/schedule.hpp"

namespace lockstep {

/// Of the train() call that begins.
struct PlannedRun {
  std::optional<std::int64_t> epochs = {};  ///< TrainConfig::epochs
  /// Batches of all ranks in an epoch of training, after limit_train_batches; unset: not known.
  std::optional<std::int64_t> batches = {};
  /// Batches of all ranks in each evaluation set, after limit_evaluation_batches; without sets of unknown
  /// length.
  std::map<std::string, std::int64_t> evaluation_batches = {};
  std::map<std::string, double> base_lr = {};  ///< of each parameter group
  std::optional<std::int64_t> known_updates_per_epoch = {};
  std::optional<std::int64_t> known_planned_steps = {};

  /// Windows in an epoch of training, the last and shorter one counted. Errors: ConfigError `unknown-length`.
  [[nodiscard]] std::int64_t updates_per_epoch() const;
  /// As Trainer::planned_steps(). Errors: ConfigError `unknown-length`, for a source of unknown length
  /// without max_steps.
  [[nodiscard]] std::int64_t planned_steps() const;
};

using ScheduleFactory = std::function<Schedule(const PlannedRun&)>;

}  // namespace lockstep
