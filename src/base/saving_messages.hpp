// The errors and remarks of saving while a run goes on.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/error.hpp"

namespace lockstep::message {

ConfigError save_signal_already_caught();
/// `setting`: of an Interval that cannot count time.
std::string problem_timed_interval(const std::string& setting, const std::string& interval);
/// The run goes on. `cause`: what the save threw.
std::string warning_save_failed(const std::string& cause);
/// The run ends by another error.
std::string warning_earlier_save_failed(const std::string& cause);
/// The text of the log's event `skip_save`.
std::string save_skipped(std::int64_t skipped);

}  // namespace lockstep::message
