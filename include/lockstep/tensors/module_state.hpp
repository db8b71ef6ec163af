// A module's tensors by name: parameters and buffers, as Python's state_dict names them.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "lockstep/tensors/named_tensors.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// All parameters, then all buffers, detached but sharing storage with the module. A tensor registered under two names
/// appears under both.
[[nodiscard]] NamedTensors module_state(const torch::nn::Module& module);

/// Moves parameters and buffers to `device`, and the floating-point ones to `floating`. Parameters stay the same tensor
/// objects, so an optimizer built before goes on training them. (torch::nn::Module::to would turn integer buffers, such
/// as batch-norm's counter, into floating-point ones.)
void place_module(torch::nn::Module& module, at::Device device, at::ScalarType floating);

}  // namespace lockstep
