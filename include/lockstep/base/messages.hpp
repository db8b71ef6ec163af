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
/// `error` is an errno of the operating system.
FileError cannot_read_file(const std::string& path, int error);
FileError cannot_read_file(const std::string& path, const std::string& problem);
FileError cannot_write_file(const std::string& path, int error);
FileError cannot_create_directory(const std::string& path, int error);
FileError checkpoint_directory_in_use(const std::string& path);
ConfigError cannot_store_tensor(const std::string& name, const std::string& problem);
CheckpointError damaged_safetensors(const std::string& path, const std::string& problem);
ConfigError unknown_weights_format(const std::string& path);
/// `present` are the checkpoints and names that could have been meant.
CheckpointError checkpoint_not_found(const std::string& path, const std::string& problem,
                                     const std::vector<std::string>& present);
CheckpointError damaged_checkpoint(const std::string& file, const std::string& problem);
CheckpointError checkpoint_format_version(const std::string& file, std::int64_t found, std::int64_t known);
/// `passed_over` are texts made by checkpoint_passed_over().
CheckpointError no_valid_checkpoint(const std::string& root, const std::vector<std::string>& passed_over);
/// A warning, not an error: why a checkpoint is not resumed from.
std::string checkpoint_passed_over(const std::string& directory, const std::string& reason);

// ---- watch ----

// ---- loop ----

}  // namespace lockstep::message
