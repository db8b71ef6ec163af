// The schedule of the learning rate: a linear warm-up, then a decay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// A multiplier of the base learning rate as a function of completed updates.
///
/// Linear from start_factor at 0 to 1 at warmup_steps; then over the remaining updates down to minimum_factor
/// at total_steps, where it stays. Without warm-up it starts at 1. The first update uses factor(0).
struct WarmupDecay {
  enum class Decay { cosine, linear, constant };

  std::int64_t total_steps = 0;  ///< updates, at least 1 and more than warmup_steps
  std::int64_t warmup_steps = 0;
  double start_factor = 0;
  double minimum_factor = 0;
  Decay decay = Decay::cosine;

  /// Not negative updates in, multiplier out. Needs settings in which problems() finds nothing.
  [[nodiscard]] double factor(std::int64_t completed_updates) const;

  bool operator==(const WarmupDecay&) const = default;
};

/// Every mistake in the settings, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const WarmupDecay& schedule);

}  // namespace lockstep
