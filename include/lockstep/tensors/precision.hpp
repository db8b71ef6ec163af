// What a Precision means for tensors.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "lockstep/config/precision.hpp"

namespace lockstep {

/// The floating-point type of parameters, buffers and batches.
[[nodiscard]] constexpr at::ScalarType floating_type(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return at::ScalarType::Double;
    case Precision::bf16:
      return at::ScalarType::BFloat16;
    case Precision::fp16:
      return at::ScalarType::Half;
    default:
      return at::ScalarType::Float;
  }
}

/// The half type that the Step runs under autocast with; nothing in the precisions that are not mixed.
[[nodiscard]] constexpr std::optional<at::ScalarType> autocast_type(Precision precision) {
  switch (precision) {
    case Precision::bf16_mixed:
      return at::ScalarType::BFloat16;
    case Precision::fp16_mixed:
      return at::ScalarType::Half;
    default:
      return std::nullopt;
  }
}

}  // namespace lockstep
