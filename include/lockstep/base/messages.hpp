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
ConfigError invalid_interval(const std::string& text);
/// `pointer` is the JSON pointer of the field; `problem` goes on from it: "is missing, add it".
ConfigError invalid_json_field(const std::string& pointer, const std::string& problem);
ConfigError signals_already_caught();

// ---- data ----

// ---- optim ----

// ---- files ----

// ---- watch ----

// ---- loop ----

}  // namespace lockstep::message
