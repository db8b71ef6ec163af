// Reading safetensors from an open file, for callers that decide how a file is opened and how damage is
// reported.
#pragma once

#include <stdexcept>

#include "base/posix_file.hpp"
#include "lockstep/tensors/safetensors.hpp"

namespace lockstep {

/// What write_safetensors() would write.
[[nodiscard]] std::string safetensors_bytes(const SafetensorsFile& file);

/// What is wrong inside a file, as a clause without the file's name.
class FileDamage : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Compares size and checksum, in constant memory. Throws FileDamage.
void verify_digest(const InputFile& file, const FileDigest& expected);

/// Reads all tensors. Memory beyond theirs is bounded by the header, whose length is at most 100 MB. Throws
/// FileDamage.
SafetensorsFile parse_safetensors(const InputFile& file);

}  // namespace lockstep
