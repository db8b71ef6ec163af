// What is said of hooks.
#pragma once

#include <string>

namespace lockstep::message {

/// One that was told of an error has thrown another.
std::string warning_hook_failed(const std::string& cause);

/// A setting of a ready-made hook, and what it may be.
std::string problem_hook_setting(const std::string& setting, const std::string& value, const std::string& allowed);

}  // namespace lockstep::message
