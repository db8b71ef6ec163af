// The number types a run computes in.
#pragma once

#include <c10/core/ScalarType.h>

#include <string_view>

namespace lockstep {

/// The floating-point type of parameters, buffers and batches.
enum class Precision { fp32, fp64 };

[[nodiscard]] constexpr at::ScalarType floating_type(Precision precision) {
  return precision == Precision::fp64 ? at::ScalarType::Double : at::ScalarType::Float;
}

[[nodiscard]] constexpr std::string_view to_string(Precision precision) {
  return precision == Precision::fp64 ? "fp64" : "fp32";
}

}  // namespace lockstep
