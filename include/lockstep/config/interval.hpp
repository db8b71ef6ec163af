// How often something happens: every so many successful updates, completed epochs, or seconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// A repeated trigger, counted in successful optimizer updates ("step"), completed epochs, or time.
struct Interval {
  /// `young_daly`: `every` is the mean time between failures, in seconds; see young_daly().
  enum class Unit { step, epoch, second, young_daly };

  std::int64_t every = 1;
  Unit unit = Unit::epoch;

  /// For TrainConfig::checkpoint_every: saves as often as loses the least time on a machine that fails this often, which
  /// is every sqrt(2 * stall * mean time between failures). The run measures for how long a save holds it up; its first
  /// one comes at the first update.
  ///
  /// Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974; J. T. Daly, "A higher
  /// order estimate of the optimum checkpoint interval for restart dumps", 2006.
  static constexpr Interval young_daly(std::chrono::seconds mean_time_between_failures) {
    return {.every = mean_time_between_failures.count(), .unit = Unit::young_daly};
  }

  /// A time that passes by the clock, not a count.
  [[nodiscard]] constexpr bool timed() const { return unit == Unit::second || unit == Unit::young_daly; }

  /// Due after the window that has just ended? `step` and `epoch` are completed counts; `updated` says
  /// whether that window made an update, `epoch_ended` whether it was the epoch's last. Never due at count 0, nor if it
  /// is timed.
  [[nodiscard]] bool due(std::int64_t step, bool updated, std::int64_t epoch, bool epoch_ended) const;

  /// Reads "50 steps", "1 epoch", "30 seconds", "failure every 86400 seconds", which is young_daly(), or "50", which
  /// counts steps. Throws ConfigError `invalid-interval`.
  static Interval parse(std::string_view text);

  bool operator==(const Interval&) const = default;
};

/// "50 steps", "1 epoch": what Interval::parse reads.
std::string to_string(const Interval& interval);

}  // namespace lockstep
