// Values of named tensors, put into others of the same names.
#pragma once

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// Copies values into tensors of the same names and shapes, converted to their types and devices. Tensors without a value,
/// and values without a tensor, are left alone.
void copy_by_name(const NamedTensors& values, const NamedTensors& into);

}  // namespace lockstep
