// What is said of optimizer_step, of late_finite_check, of debugging, of overfitting on
// purpose, and of finding a rate.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.hpp"

namespace lockstep::message {

/// For invalid_settings(): `precision` needs a loss scaler.
std::string problem_optimizer_step_scaled(const std::string& precision);
/// `again`, `done`: the ranks that call the closure once more, and those whose optimizer_step has returned.
RankError closure_calls_differ(const std::vector<int>& again, const std::vector<int>& done);

/// For invalid_settings(): `what` has to know of each update at once.
std::string problem_late_finite_check(const std::string& what);

ConfigError invalid_debug_variable(const std::string& text);
std::string warning_debug();
std::string warning_overfit(std::int64_t batches);

/// A setting of find_rate(), and what it may be.
std::string problem_rate_finder(const std::string& setting, const std::string& value, const std::string& allowed);

}  // namespace lockstep::message
