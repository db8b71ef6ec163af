#include "lockstep/optim/loss_scaler.hpp"

#include <algorithm>
#include <cmath>

namespace lockstep {

void LossScaler::after_update() {
  if (++growth_tracker_ < options_.growth_interval) return;
  const auto grown = static_cast<float>(scale_ * options_.growth_factor);
  if (std::isfinite(grown)) scale_ = grown;
  growth_tracker_ = 0;
}

void LossScaler::after_overflow() {
  scale_ = static_cast<float>(std::max(scale_ * options_.backoff_factor, smallest_loss_scale));
  growth_tracker_ = 0;
}

}  // namespace lockstep
