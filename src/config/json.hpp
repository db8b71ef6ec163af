// The settings and the state of a run as JSON, in config.json and in every checkpoint.
//
// Doubles keep every bit, the payload of a NaN aside; those that are not finite become "nan", "inf" and
// "-inf", since JSON has no number for them. Whether values make sense is asked of problems(), not here.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/config/data_loader_options.hpp"
#include "lockstep/config/interval.hpp"
#include "lockstep/config/monitor.hpp"
#include "lockstep/config/precision.hpp"
#include "lockstep/config/schedule.hpp"
#include "lockstep/config/train_config.hpp"
#include "lockstep/config/train_state.hpp"

namespace lockstep {

/// For Interval, Monitor, TrainConfig, TrainState, Schedule, PlateauState, Precision, LossScalerOptions and
/// DataLoaderOptions. An Interval is the text "1 epoch"; a Schedule is {"warmup_decay": {...}}, its kind and
/// its fields.
template <class T>
nlohmann::json to_json(const T& value);

/// Reads what to_json() wrote, as a value that stands at `where` in its document. A missing, unknown or
/// wrong-typed field throws ConfigError `invalid-json-field` with its JSON pointer. The function of a
/// LambdaSchedule stays empty.
template <class T>
T read_json(const nlohmann::json& json,
            const nlohmann::json::json_pointer& where = nlohmann::json::json_pointer());

/// null for a value that is not there.
template <class T>
nlohmann::json or_null(const std::optional<T>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json(nullptr);
}

/// "nan", "inf" or "-inf" for a value that is not finite.
std::string non_finite_name(double value);

}  // namespace lockstep
