// By which of its addresses this machine can be reached.
#pragma once

#include <string>

#include "lockstep/ranks/launch.hpp"

namespace lockstep {

/// A numeric address at which the other ranks reach this machine: that by which it reaches the meeting point,
/// but none of the machine alone, to which many systems resolve their own name, unless all ranks are here.
[[nodiscard]] std::string address_for_others(const Launch& launch);

}  // namespace lockstep
