// For hooks that judge evaluations as a Monitor does.
#pragma once

#include <optional>
#include <string>

#include "lockstep/config/monitor.hpp"
#include "lockstep/loop/hooks.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// The value of `metric` (`set/metric`, or `raw/set/metric` of raw weights beside averaged ones) among the
/// results of an evaluation, unset if they are of another set or of other weights. Errors: ConfigError
/// `unknown-metric`.
std::optional<double> evaluated_value(const Run& run, Weights weights, const EvaluationResults& results,
                                      const std::string& metric);

/// One name for each metric; a name of state has no slash.
std::string state_name(std::string hook, const Monitor& monitor);

/// What a Monitor keeps in a TrainState.
NamedTensors monitor_state(const TrainState& judged);
void load_monitor_state(const NamedTensors& state, TrainState& judged);

}  // namespace lockstep
