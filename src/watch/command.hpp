// Running a program for what it prints.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

/// Limits on a program that is waited for.
struct CommandLimits {
  std::chrono::milliseconds time = std::chrono::seconds(5);
  std::size_t output_bytes = std::size_t{16} << 20;
};

/// The standard output of a program, found on the PATH, that exits with 0. Nothing if it does not, cannot be
/// run, or goes beyond a limit; then it is killed with its children. It gets no terminal, so it cannot ask a
/// person anything, and its errors are not shown. `environment` are settings NAME=VALUE beside our own.
std::optional<std::string> captured_output(const std::vector<std::string>& arguments,
                                           const std::vector<std::string>& environment = {},
                                           const CommandLimits& limits = {});

}  // namespace lockstep
