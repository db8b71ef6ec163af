// Every error the library can throw, one factory a message: `throw message::empty_source();`.
//
// Internal to lockstep, but visible because class templates throw too. The texts are in src/base/messages.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/error.hpp"

namespace lockstep::message {

// ---- config ----
/// One error that lists every mistake found; `problems` are sentences that end with their remedy.
ConfigError invalid_settings(const std::vector<std::string>& problems);

// ---- data ----

// ---- optim ----

// ---- files ----

// ---- watch ----

// ---- loop ----

}  // namespace lockstep::message
