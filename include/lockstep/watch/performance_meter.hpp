// How fast a run is, what its time goes into, and how much memory it holds.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

/// What a process spends time on: waiting for a batch and placing it, the Step with its backward pass, the
/// update, evaluations, saving, and all else.
enum class Activity { data, step, update, evaluate, checkpoint, other };

/// Splits the time between two training lines of the log by activity, and counts what got done in it.
///
/// A lap costs one reading of the clock. On a device that works asynchronously, time is booked where the
/// process waits for the device, not where it gave the order.
class PerformanceMeter {
 public:
  using Clock = std::chrono::steady_clock;

  /// Starts over with the run's counters as they are now.
  void start(std::int64_t step, std::int64_t samples, Clock::time_point now = Clock::now());

  /// The time since the last lap went into `activity`.
  void lap(Activity activity, Clock::time_point now = Clock::now()) {
    spent_[static_cast<std::size_t>(activity)] += now - lap_start_;
    lap_start_ = now;
  }

  /// The values since start() or the last take(), always under the same names: `samples_per_second`,
  /// `steps_per_second`, a share of the time for each activity (`time/data`, ...; their sum is 1, and time
  /// after the last lap is `other`), `memory/resident_bytes`.
  [[nodiscard]] std::vector<std::pair<std::string, double>> take(std::int64_t step, std::int64_t samples,
                                                                 Clock::time_point now = Clock::now());

 private:
  static constexpr std::size_t activities = 6;

  std::int64_t step_ = 0;
  std::int64_t samples_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point lap_start_ = start_;
  std::array<Clock::duration, activities> spent_ = {};
};

/// Whether a logged value measures the machine, not the training, and so differs when a run is repeated: what
/// PerformanceMeter reports.
[[nodiscard]] bool is_measurement(std::string_view value_name);

/// The memory of this process that is not swapped out. 0 where the system does not tell.
[[nodiscard]] std::int64_t resident_bytes();

}  // namespace lockstep
