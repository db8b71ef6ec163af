// What a PATH on the command line stands for.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::cli {

/// For the help of each command that takes one.
inline constexpr const char* path_help =
    "A step folder, a name such as checkpoints/best, a\n"
    "folder of checkpoints, which stands for its newest\n"
    "valid one, or a weights file (.safetensors)";

/// Whether `path` is a folder that holds step folders.
bool holds_checkpoints(const std::filesystem::path& path);

/// `given`, or the newest valid checkpoint of a folder of checkpoints. Which one that is, and what was passed over, is
/// said on the error output. Errors: CheckpointError `no-valid-checkpoint`.
std::filesystem::path find_source(const std::filesystem::path& given);

}  // namespace lockstep::cli
