#include "lockstep/config/precision.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace lockstep {

std::string to_string(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return "fp32";
    case Precision::fp64:
      return "fp64";
    case Precision::bf16:
      return "bf16";
    case Precision::fp16:
      return "fp16";
    case Precision::bf16_mixed:
      return "bf16-mixed";
    case Precision::fp16_mixed:
      return "fp16-mixed";
  }
  return {};
}

std::vector<std::string> problems(const LossScalerOptions& options) {
  std::vector<std::string> found;
  if (!(options.initial_scale >= smallest_loss_scale &&
        options.initial_scale <= std::numeric_limits<float>::max())) {
    found.push_back(
        fmt::format("loss_scaler.initial_scale is {}: give a number from {} up that a float can hold, for "
                    "example 65536.",
                    options.initial_scale, smallest_loss_scale));
  }
  if (!std::isfinite(options.growth_factor) || options.growth_factor <= 1) {
    found.push_back(fmt::format("loss_scaler.growth_factor is {}: give a number above 1, for example 2.",
                                options.growth_factor));
  }
  if (!(options.backoff_factor > 0 && options.backoff_factor < 1)) {
    found.push_back(fmt::format("loss_scaler.backoff_factor is {}: give a number between 0 and 1, for example 0.5.",
                                options.backoff_factor));
  }
  if (options.growth_interval < 1) {
    found.push_back(
        fmt::format("loss_scaler.growth_interval is {}: give at least 1 update.", options.growth_interval));
  }
  return found;
}

}  // namespace lockstep
