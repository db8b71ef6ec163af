// Files in the IDX format of the MNIST family.
//
// Format: two zero bytes, the element type, the number of dimensions, each dimension as four big-endian
// bytes, then the elements, the last dimension fastest. Source: "File formats" at the foot of Y. LeCun's page
// of the MNIST database.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

/// The unsigned bytes of `path`, which may be compressed with gzip, as a tensor of exactly the given shape.
/// Errors: lockstep::DataError `cannot-read-idx`.
[[nodiscard]] at::Tensor read_idx(const std::filesystem::path& path, at::IntArrayRef shape);
