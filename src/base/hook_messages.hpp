// What is said of hooks.
#pragma once

#include <string>

namespace lockstep::message {

/// One that was told of an error has thrown another.
std::string warning_hook_failed(const std::string& cause);

}  // namespace lockstep::message
