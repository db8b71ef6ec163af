// Reading safetensors from an open file, for callers that decide how a file is opened and how damage is
// reported.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "base/posix_file.hpp"
#include "lockstep/tensors/safetensors.hpp"

namespace lockstep {

/// What write_safetensors() would write.
[[nodiscard]] std::string safetensors_bytes(const SafetensorsFile& file);

/// What the format calls a type, "F32" say. Only for types that it has.
[[nodiscard]] std::string_view safetensors_dtype(at::ScalarType type);

/// What is wrong inside a file, as a clause without the file's name.
class FileDamage : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The digest of what safetensors_bytes() made.
[[nodiscard]] FileDigest digest_of(const std::string& bytes);

/// Checks all that parse_safetensors() checks, in memory bounded by the header. Throws FileDamage.
void verify_safetensors(const InputFile& file, const FileDigest& expected);

/// Reads all tensors, in one pass, and compares size and checksums with those in `expected`, if it is given. Memory
/// beyond theirs is bounded by the header, whose length is at most 100 MB. Throws FileDamage, which names the tensor.
SafetensorsFile parse_safetensors(const InputFile& file, const FileDigest* expected = nullptr);

}  // namespace lockstep
