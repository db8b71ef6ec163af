// Tensors with names, in a fixed order.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace lockstep {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// SHA-256 over names, types, shapes and values, as 64 hexadecimal digits. Independent of device and strides.
std::string sha256(const NamedTensors& tensors);

}  // namespace lockstep
