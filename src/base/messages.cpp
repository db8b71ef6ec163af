// The text of every error, each with its remedy.
#include "lockstep/base/messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::message {

// ---- config ----
ConfigError invalid_settings(const std::vector<std::string>& problems) {
  return {"invalid-settings", fmt::format("the settings cannot work:\n  - {}", fmt::join(problems, "\n  - "))};
}

ConfigError invalid_interval(const std::string& text) {
  return {"invalid-interval",
          fmt::format("\"{}\" is not an interval: write a number from 1 up and its unit, as in \"50 steps\" or "
                      "\"1 epoch\".",
                      text)};
}

ConfigError invalid_json_field(const std::string& pointer, const std::string& problem) {
  return {"invalid-json-field", fmt::format("JSON field \"{}\" {}.", pointer, problem)};
}

ConfigError signals_already_caught() {
  return {"signals-already-caught",
          "catch_signals() was called while another of its scopes exists: a process has one set of signal handlers, "
          "so let that scope end first, or hand the same StopRequest to every train() call."};
}

// ---- data ----

// ---- optim ----

// ---- files ----

// ---- watch ----

// ---- loop ----

}  // namespace lockstep::message
