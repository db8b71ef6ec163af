// Weights in one file, to hand on or to start from.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// Writes `path`, which ends in `.safetensors`: complete and durable, or as it was before. Missing
/// directories above it are created. Python reads it with `safetensors.torch.load_file(path)`. Errors:
/// ConfigError `unknown-weights-format`, `cannot-store-tensor`, FileError `cannot-write-file`,
/// `cannot-create-directory`.
void save_weights(const std::filesystem::path& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {});

/// Reads all of `path`, which ends in `.safetensors`; the tensors are on the CPU.
/// Errors: ConfigError `unknown-weights-format`, FileError `cannot-read-file`, CheckpointError
/// `damaged-safetensors`.
[[nodiscard]] NamedTensors load_weights(const std::filesystem::path& path);

}  // namespace lockstep
