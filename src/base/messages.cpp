// The text of every error, each with its remedy.
#include "lockstep/base/messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::message {

// ---- config ----
ConfigError invalid_settings(const std::vector<std::string>& problems) {
  return {"invalid-settings", fmt::format("the settings cannot work:\n  - {}", fmt::join(problems, "\n  - "))};
}

// ---- data ----

// ---- optim ----

// ---- files ----

// ---- watch ----

// ---- loop ----

}  // namespace lockstep::message
