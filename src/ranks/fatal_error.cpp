#include "lockstep/ranks/fatal_error.hpp"

#include <c10/util/Type.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <typeinfo>

namespace lockstep {

void report_fatal_error(const std::exception& error) noexcept {
  const char* const file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (!file) return;
  try {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now).count();
    // No "py_callstack": torchrun shows it instead of the message, even where it is empty.
    const nlohmann::json report = {{"message",
                                    {{"message", c10::demangle(typeid(error).name()) + ": " + error.what()},
                                     {"extraInfo", {{"timestamp", std::to_string(seconds)}}}}}};
    std::ofstream(file) << report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } catch (...) {
    // The error itself is what matters, and its message is on its way to the standard error stream.
  }
}

}  // namespace lockstep
