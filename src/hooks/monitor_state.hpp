// What a Monitor keeps in a TrainState, as the state of a hook.
#pragma once

#include <string>

#include "lockstep/config/monitor.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// One name for each metric; a name of state has no slash.
std::string state_name(std::string hook, const Monitor& monitor);

NamedTensors monitor_state(const TrainState& judged);
void load_monitor_state(const NamedTensors& state, TrainState& judged);

}  // namespace lockstep
