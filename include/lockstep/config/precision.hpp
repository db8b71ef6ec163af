// The number types a run computes in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// `fp32`, `fp64`, `bf16`, `fp16`: parameters, buffers and batches are of that type. `bf16_mixed`, `fp16_mixed`: they are
/// fp32, and the Step runs under autocast, which computes matrix products and convolutions in the half type. With
/// parameters of half type lockstep's own optimizers keep fp32 copies of them and update those.
enum class Precision { fp32, fp64, bf16, fp16, bf16_mixed, fp16_mixed };

/// "fp32", "fp64", "bf16", "fp16", "bf16-mixed", "fp16-mixed".
std::string to_string(Precision precision);

/// Whether gradients are computed in fp16, in which small ones vanish unless the loss is scaled.
[[nodiscard]] constexpr bool scales_loss(Precision precision) {
  return precision == Precision::fp16 || precision == Precision::fp16_mixed;
}

/// The dynamic loss scale of fp16 and fp16_mixed, with the defaults of torch.amp.GradScaler.
struct LossScalerOptions {
  /// From smallest_loss_scale up.
  double initial_scale = 65536;
  /// After growth_interval updates in a row without overflow the scale is multiplied by it.
  double growth_factor = 2;
  /// After an overflow the scale is multiplied by it.
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;

  bool operator==(const LossScalerOptions&) const = default;
};

/// An overflow here ends the run instead of lowering the scale: gradients that overflow fp16 even so are
/// above 1e9, or are not finite at any scale.
inline constexpr double smallest_loss_scale = 0x1p-14;

/// Every mistake in the settings, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const LossScalerOptions& options);

}  // namespace lockstep
