// What a program tells its launcher before it ends by an error.
#pragma once

#include <exception>

namespace lockstep {

/// Writes the error to the file that TORCHELASTIC_ERROR_FILE names, so that torchrun shows it as the cause of
/// the failure; does nothing where the variable is unset. Call it where main() catches what nothing else did.
void report_fatal_error(const std::exception& error) noexcept;

}  // namespace lockstep
