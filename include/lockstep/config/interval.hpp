// How often something happens: every so many successful updates or completed epochs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

/// A repeated trigger, counted in successful optimizer updates ("step") or completed epochs.
struct Interval {
  enum class Unit { step, epoch };

  std::int64_t every = 1;
  Unit unit = Unit::epoch;

  /// Due after the window that has just ended? `step` and `epoch` are completed counts; `updated` says
  /// whether that window made an update, `epoch_ended` whether it was the epoch's last. Never due at count 0.
  [[nodiscard]] bool due(std::int64_t step, bool updated, std::int64_t epoch, bool epoch_ended) const;

  /// Reads "50 steps", "1 epoch", or "50", which counts steps. Throws ConfigError `invalid-interval`.
  static Interval parse(std::string_view text);

  bool operator==(const Interval&) const = default;
};

/// "50 steps", "1 epoch": what Interval::parse reads.
std::string to_string(const Interval& interval);

}  // namespace lockstep
