// The safetensors file format: read as hostile, written durably.
//
// Format: 8-byte little-endian header length, a JSON object name -> {dtype, shape, data_offsets}, optionally
// `__metadata__` (strings only), then the bytes of the tensors, contiguous and without gaps. Python's `safetensors`
// package reads what is written here, and the other way round.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

struct SafetensorsFile {
  NamedTensors tensors;  ///< on the CPU, contiguous
  std::map<std::string, std::string> metadata = {};
};

/// Size and CRC-32C of a file as written, and the CRC-32C of each tensor's bytes, in the order in which they lie in the
/// file; without those of the tensors, damage is found all the same, but no tensor is named.
struct FileDigest {
  std::uint64_t size = 0;
  std::uint32_t crc32c = 0;
  std::vector<std::uint32_t> tensors = {};
  bool operator==(const FileDigest&) const = default;
};

/// Writes `path` (which must not exist) and fsyncs it. Tensors are copied to the CPU one at a time.
/// Errors: FileError `cannot-write-file`; nothing is left behind when it throws.
FileDigest write_safetensors(const std::filesystem::path& path, const SafetensorsFile& file);

/// Reads all of `path`, once. With `expected`, size and checksums are compared too.
/// Errors: FileError `cannot-read-file`, CheckpointError `damaged-safetensors` (what is wrong and where).
SafetensorsFile read_safetensors(const std::filesystem::path& path, const FileDigest* expected = nullptr);

}  // namespace lockstep
