#include "base/saving_messages.hpp"

#include <fmt/format.h>

namespace lockstep::message {

ConfigError save_signal_already_caught() {
  return {"save-signal-already-caught",
          "catch_signal() was called while another of its scopes exists: a process has one handler of SIGUSR2, so let "
          "that scope end first, or hand the same SaveRequest to every train() call."};
}

std::string problem_timed_interval(const std::string& setting, const std::string& interval) {
  return fmt::format(
      "{} is \"{}\": only checkpoint_every takes a time, since what else happens in a run must not depend on a clock; "
      "give steps or epochs.",
      setting, interval);
}

std::string warning_save_failed(const std::string& cause) {
  return fmt::format(
      "a checkpoint could not be saved: {} Training goes on and older checkpoints are as they were; the next save that "
      "is due tries again.",
      cause);
}

std::string warning_earlier_save_failed(const std::string& cause) {
  return fmt::format("the last checkpoint before the error that ends the run could not be saved: {}", cause);
}

std::string save_skipped(std::int64_t skipped) {
  return fmt::format("a save was due while the one before it was still being written; left out so far: {}", skipped);
}

}  // namespace lockstep::message
