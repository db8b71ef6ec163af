// Where a run's learning rates come from: base rates times a schedule, or a schedule of Torch's that writes them.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/interval.hpp"
#include "lockstep/config/schedule.hpp"
#include "lockstep/config/train_state.hpp"

namespace torch::optim {
class LRScheduler;
class ReduceLROnPlateauScheduler;
}

namespace lockstep {

/// A schedule and where it stands. In every checkpoint.
struct RateSchedule {
  std::optional<Schedule> schedule = {};  ///< unset: base rates
  Interval every = {.every = 1, .unit = Interval::Unit::step};
  PlateauState plateau = {};

  /// What base rates are multiplied with at this state.
  [[nodiscard]] double factor(const TrainState& state) const;
  /// The metric that it follows, if it follows one.
  [[nodiscard]] std::optional<std::string> metric() const;
  /// The metric's value after an evaluation.
  void observe(double value);
};

/// A schedule of Torch's own. It writes rates itself, and its state is private.
///
/// Ownership: refers to the schedule, which outlives it.
class TorchSchedule {
 public:
  TorchSchedule(torch::optim::LRScheduler& schedule, Interval every) : by_count_(&schedule), every_(every) {}
  TorchSchedule(torch::optim::ReduceLROnPlateauScheduler& schedule, std::string metric)
      : by_metric_(&schedule), metric_(std::move(metric)) {}

  [[nodiscard]] std::optional<std::string> metric() const;
  void observe(double value);
  /// A window has ended; see Interval::due.
  void after_window(const TrainState& state, bool updated, bool epoch_ended);

 private:
  torch::optim::LRScheduler* by_count_ = nullptr;
  Interval every_ = {};
  torch::optim::ReduceLROnPlateauScheduler* by_metric_ = nullptr;
  std::string metric_;
};

/// Null, or {"warmup_decay": {...}, "every": {...}} with "plateau_state" where there is one.
nlohmann::json to_json(const RateSchedule& rates);

/// What a resumed run goes on with: the `saved` schedule, or `given` if `keep_given`. What is wrong with it goes to
/// `misfits`, a difference between the two to `warnings`. Errors: ConfigError `invalid-json-field`.
RateSchedule restored(nlohmann::json saved, const RateSchedule& given, bool keep_given,
                      std::vector<std::string>& misfits, std::vector<std::string>& warnings);

}  // namespace lockstep
