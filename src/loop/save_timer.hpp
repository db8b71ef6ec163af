// When the next save is due by the clock.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "lockstep/config/interval.hpp"

namespace lockstep {

/// What the time is; a test may put another clock in its place.
extern std::chrono::steady_clock::time_point (*save_clock)();

/// Of one train() call, on rank 0.
class SaveTimer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// Never due if the interval is unset or counts something else than time.
  explicit SaveTimer(const std::optional<Interval>& interval);

  [[nodiscard]] bool due() const;
  /// A save is over that held the run up from `begin` on.
  void saved(Time begin);
  /// One that was due was left out.
  void skipped() { last_ = save_clock(); }

 private:
  [[nodiscard]] double seconds_between_saves() const;

  std::optional<Interval> interval_;
  Time last_;
  std::int64_t saves_ = 0;
  double first_stall_ = 0;   // seconds
  double later_stalls_ = 0;  // seconds, of all but the first
};

}  // namespace lockstep
