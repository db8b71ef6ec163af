// A History as bytes, for checkpoints and for other ranks. No value, NaN included, loses a bit.
#pragma once

#include <string>

#include "lockstep/watch/history.hpp"

namespace lockstep {

std::string packed(const History& history);

/// Reads what packed() gave. Throws nlohmann::json::exception on anything else.
History unpacked(const std::string& bytes);

}  // namespace lockstep
