// The dynamic loss scale of fp16: as large as the gradients allow.
#pragma once

#include <cstdint>

#include "lockstep/config/precision.hpp"

namespace lockstep {

/// The factor that a loss is multiplied by before its backward pass, so that small gradients do not vanish in
/// fp16, and how it follows what happens to the updates.
///
/// The arithmetic is that of torch.amp.GradScaler, in float. The one difference: an overflow does not take
/// the scale below smallest_loss_scale, where optimizer_update gives up. Source: Micikevicius et al., "Mixed
/// Precision Training", 2018.
class LossScaler {
 public:
  explicit LossScaler(const LossScalerOptions& options)
      : options_(options), scale_(static_cast<float>(options.initial_scale)) {}

  [[nodiscard]] double scale() const { return scale_; }
  /// Updates in a row without overflow since the scale last changed.
  [[nodiscard]] std::int64_t growth_tracker() const { return growth_tracker_; }
  void restore(double scale, std::int64_t growth_tracker) {
    scale_ = static_cast<float>(scale);
    growth_tracker_ = growth_tracker;
  }

  void after_update();
  void after_overflow();

 private:
  LossScalerOptions options_;
  float scale_;
  std::int64_t growth_tracker_ = 0;
};

}  // namespace lockstep
