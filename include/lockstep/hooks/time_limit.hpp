// Ends a run in time.
#pragma once

#include <chrono>

#include "lockstep/loop/hooks.hpp"

namespace lockstep {

/// Asks for a stop at the first update after so long in one train() call: `last` is saved, and a resume goes
/// on, with the whole time again. For jobs whose time is limited; leave enough of it for the last save. It is
/// enough that one rank's clock says so.
///
///     TimeLimit limit(std::chrono::hours(11));
///
/// Errors: ConfigError `invalid-settings`.
class TimeLimit final : public Hook {
 public:
  explicit TimeLimit(std::chrono::duration<double> limit);

  void run_begin(Run& run) override;
  void after_update(Run& run, const UpdateOutcome& outcome) override;

 private:
  using Clock = std::chrono::steady_clock;

  std::chrono::duration<double> limit_;
  Clock::time_point begin_ = {};
};

}  // namespace lockstep
