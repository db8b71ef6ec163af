#include "loop/save_timer.hpp"

#include <cmath>

namespace lockstep {
namespace {

double seconds_since(SaveTimer::Time begin) {
  return std::chrono::duration<double>(save_clock() - begin).count();
}

}  // namespace

std::chrono::steady_clock::time_point (*save_clock)() = [] { return std::chrono::steady_clock::now(); };

SaveTimer::SaveTimer(const std::optional<Interval>& interval) : last_(save_clock()) {
  if (interval && interval->timed()) interval_ = interval;
}

bool SaveTimer::due() const { return interval_ && seconds_since(last_) >= seconds_between_saves(); }

double SaveTimer::seconds_between_saves() const {
  const auto every = static_cast<double>(interval_->every);
  if (interval_->unit == Interval::Unit::second) return every;
  if (saves_ == 0) return 0;
  // The first save pays for memory that the others find there.
  const double stall = saves_ == 1 ? first_stall_ : later_stalls_ / static_cast<double>(saves_ - 1);
  return std::sqrt(2 * stall * every);
}

void SaveTimer::saved(Time begin) {
  (saves_ == 0 ? first_stall_ : later_stalls_) += seconds_since(begin);
  ++saves_;
  last_ = save_clock();
}

}  // namespace lockstep
