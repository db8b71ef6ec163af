#include "loop/rate_schedule.hpp"

#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>

#include "config/json.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {

using nlohmann::json;

double RateSchedule::factor(const TrainState& state) const {
  if (!schedule) return 1;
  if (schedule->plateau()) return plateau.factor;
  return schedule->factor((every.unit == Interval::Unit::step ? state.step : state.epoch) / every.every);
}

std::optional<std::string> RateSchedule::metric() const {
  if (!schedule || !schedule->plateau()) return {};
  return schedule->plateau()->metric;
}

void RateSchedule::observe(double value) { plateau = schedule->plateau()->observe(value, plateau); }

std::optional<std::string> TorchSchedule::metric() const {
  if (by_metric_ == nullptr) return {};
  return metric_;
}

void TorchSchedule::observe(double value) { by_metric_->step(static_cast<float>(value)); }

void TorchSchedule::after_window(const TrainState& state, bool updated, bool epoch_ended) {
  if (by_count_ != nullptr && every_.due(state.step, updated, state.epoch, epoch_ended)) by_count_->step();
}

json to_json(const RateSchedule& rates) {
  if (!rates.schedule) return nullptr;
  json described = to_json(*rates.schedule);
  described["every"] = to_json(rates.every);
  if (rates.schedule->plateau()) described["plateau_state"] = to_json(rates.plateau);
  return described;
}

RateSchedule restored(json saved, const RateSchedule& given, bool keep_given, std::vector<std::string>& misfits,
                      std::vector<std::string>& warnings) {
  if (keep_given) return given;
  const json::json_pointer where("/schedule");
  RateSchedule rates;
  if (!saved.is_null()) {
    rates.every = read_json<Interval>(saved.at("every"), where / "every");
    saved.erase("every");
    if (saved.contains("plateau_state")) {
      rates.plateau = read_json<PlateauState>(saved.at("plateau_state"), where / "plateau_state");
      saved.erase("plateau_state");
    }
    // What is equal is taken as it was given: functions are not in the file.
    const bool as_given = given.schedule && to_json(*given.schedule) == saved;
    rates.schedule = as_given ? *given.schedule : read_json<Schedule>(saved, where);
    for (auto& problem : problems(*rates.schedule)) misfits.push_back(std::move(problem));
  }
  if (given.schedule && (rates.schedule != given.schedule || rates.every != given.every)) {
    warnings.push_back(message::warning_schedule_restored(rates.schedule ? to_json(rates).dump() : "none",
                                                          to_json(given).dump()));
  }
  return rates;
}

}  // namespace lockstep
