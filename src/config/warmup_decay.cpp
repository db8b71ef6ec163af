#include "lockstep/config/warmup_decay.hpp"

#include <fmt/format.h>

#include <cassert>
#include <cmath>
#include <numbers>

namespace lockstep {

double WarmupDecay::factor(std::int64_t completed_updates) const {
  assert(completed_updates >= 0);
  if (completed_updates < warmup_steps) {
    return start_factor +
           (1 - start_factor) * static_cast<double>(completed_updates) / static_cast<double>(warmup_steps);
  }
  if (decay == Decay::constant) return 1;
  if (completed_updates >= total_steps) return minimum_factor;

  const double progress =
      static_cast<double>(completed_updates - warmup_steps) / static_cast<double>(total_steps - warmup_steps);
  const double descent = decay == Decay::linear ? progress : (1 - std::cos(std::numbers::pi * progress)) / 2;
  return 1 - (1 - minimum_factor) * descent;
}

std::vector<std::string> problems(const WarmupDecay& schedule) {
  std::vector<std::string> found;
  if (schedule.total_steps < 1) {
    found.push_back(
        fmt::format("WarmupDecay.total_steps is {}: give the number of updates, at least 1, for example "
                    "trainer.planned_steps(config).",
                    schedule.total_steps));
  }
  if (schedule.warmup_steps < 0) {
    found.push_back(
        fmt::format("WarmupDecay.warmup_steps is {}: give 0 for no warm-up, or a positive number.",
                    schedule.warmup_steps));
  } else if (schedule.total_steps >= 1 && schedule.warmup_steps >= schedule.total_steps) {
    found.push_back(
        fmt::format("WarmupDecay.warmup_steps is {} of {} total_steps: leave at least one update for the "
                    "decay.",
                    schedule.warmup_steps, schedule.total_steps));
  }

  const auto check_factor = [&](const char* name, double factor) {
    if (!(factor >= 0 && factor <= 1)) {
      found.push_back(fmt::format("WarmupDecay.{} is {}: give a factor from 0 to 1.", name, factor));
    }
  };
  check_factor("start_factor", schedule.start_factor);
  check_factor("minimum_factor", schedule.minimum_factor);
  if (schedule.warmup_steps == 0 && schedule.start_factor != 0) {
    found.push_back(
        fmt::format("WarmupDecay.start_factor is {} but would be ignored, as warmup_steps is 0: set "
                    "warmup_steps, or leave start_factor out.",
                    schedule.start_factor));
  }
  if (schedule.decay == WarmupDecay::Decay::constant && schedule.minimum_factor != 0) {
    found.push_back(
        fmt::format("WarmupDecay.minimum_factor is {} but would be ignored, as the decay is constant: "
                    "choose cosine or linear, or leave minimum_factor out.",
                    schedule.minimum_factor));
  }
  return found;
}

}  // namespace lockstep
