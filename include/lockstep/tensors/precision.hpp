// What a Precision means for tensors.
#pragma once

#include <c10/core/ScalarType.h>

#include "lockstep/config/precision.hpp"

namespace lockstep {

/// The floating-point type of parameters, buffers and batches.
[[nodiscard]] constexpr at::ScalarType floating_type(Precision precision) {
  return precision == Precision::fp64 ? at::ScalarType::Double : at::ScalarType::Float;
}

}  // namespace lockstep
