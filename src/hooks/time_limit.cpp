#include "lockstep/hooks/time_limit.hpp"

#include "base/hook_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "watch/number_text.hpp"

namespace lockstep {

TimeLimit::TimeLimit(std::chrono::duration<double> limit) : limit_(limit) {
  if (limit.count() > 0) return;
  throw message::invalid_settings(
      {message::problem_hook_setting("limit", number_text(limit.count()), "more than 0 seconds")});
}

void TimeLimit::run_begin(Run&) { begin_ = Clock::now(); }

void TimeLimit::after_update(Run& run, const UpdateOutcome&) {
  if (Clock::now() - begin_ < limit_) return;
  run.request_stop("the time limit of " + duration_text(limit_.count()) + " is reached");
}

}  // namespace lockstep
