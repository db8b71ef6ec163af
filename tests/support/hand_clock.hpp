// A clock that goes on only when it is told to.
#pragma once

#include <chrono>

#include "loop/save_timer.hpp"

namespace lockstep::test {

/// Saves are due by it while it lives. One at a time.
class HandClock {
 public:
  HandClock() : before_(save_clock) {
    now_ = {};
    save_clock = [] { return now_; };
  }
  ~HandClock() { save_clock = before_; }
  HandClock(const HandClock&) = delete;
  HandClock& operator=(const HandClock&) = delete;

  void pass(double seconds) {
    now_ += std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(seconds));
  }

 private:
  inline static std::chrono::steady_clock::time_point now_;
  std::chrono::steady_clock::time_point (*before_)();
};

}  // namespace lockstep::test
