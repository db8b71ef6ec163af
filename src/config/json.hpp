// The settings and the state of a run as JSON, in config.json and in every checkpoint.
//
// Doubles keep every bit, the payload of a NaN aside; those that are not finite become "nan", "inf" and
// "-inf", since JSON has no number for them. Reading is strict: a missing, unknown or wrong-typed field
// throws ConfigError `invalid-json-field` with its JSON pointer. Whether values make sense is asked of
// problems(), not here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/config/interval.hpp"
#include "lockstep/config/monitor.hpp"
#include "lockstep/config/train_config.hpp"
#include "lockstep/config/train_state.hpp"
#include "lockstep/config/warmup_decay.hpp"

namespace lockstep {

nlohmann::json to_json(const Interval& interval);
nlohmann::json to_json(const Monitor& monitor);
nlohmann::json to_json(const TrainState& state);
nlohmann::json to_json(const WarmupDecay& schedule);
nlohmann::json to_json(const TrainConfig& config);

/// Reads a value that stands at `where` in its document. An Interval may also be given as text, "1 epoch".
template <class T>
T read_json(const nlohmann::json& json,
            const nlohmann::json::json_pointer& where = nlohmann::json::json_pointer());

template <>
Interval read_json<Interval>(const nlohmann::json& json, const nlohmann::json::json_pointer& where);
template <>
Monitor read_json<Monitor>(const nlohmann::json& json, const nlohmann::json::json_pointer& where);
template <>
TrainState read_json<TrainState>(const nlohmann::json& json, const nlohmann::json::json_pointer& where);
template <>
WarmupDecay read_json<WarmupDecay>(const nlohmann::json& json, const nlohmann::json::json_pointer& where);
template <>
TrainConfig read_json<TrainConfig>(const nlohmann::json& json, const nlohmann::json::json_pointer& where);

/// "nan", "inf" or "-inf" for a value that is not finite.
std::string non_finite_name(double value);

}  // namespace lockstep
