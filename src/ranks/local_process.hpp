// Whether a process of this machine still runs.
#pragma once

#include <string>

namespace lockstep {

/// A name of this process that no other one has had; empty where that cannot be told.
[[nodiscard]] std::string name_of_this_process();

enum class Seen { running, ended_or_stopped, nowhere };

/// `nowhere`: not a process of this machine, as far as can be told.
[[nodiscard]] Seen look_for(const std::string& process);

}  // namespace lockstep
