// The weights file that Python's torch.load(path, weights_only=True) reads.
#pragma once

#include <filesystem>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// Writes `path` (which must not exist) and fsyncs it: a dict of tensors by name. Tensors are copied to the CPU.
/// Errors: FileError `cannot-write-file`; nothing is left behind when it throws.
void write_pt(const std::filesystem::path& path, const NamedTensors& tensors);

}  // namespace lockstep
