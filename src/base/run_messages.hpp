// What is said when a train() call begins.
#pragma once

#include <string>

namespace lockstep::message {

/// For invalid_settings().
std::string problem_schedule_factory();

// Warnings: something would be lost that many people want to keep.

std::string warning_nothing_kept();
std::string warning_no_checkpoints();

}  // namespace lockstep::message
