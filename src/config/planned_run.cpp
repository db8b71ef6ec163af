#include "lockstep/config/planned_run.hpp"

#include "lockstep/base/messages.hpp"

namespace lockstep {

std::int64_t PlannedRun::updates_per_epoch() const {
  if (!known_updates_per_epoch) throw message::unknown_length();
  return *known_updates_per_epoch;
}

std::int64_t PlannedRun::planned_steps() const {
  if (!known_planned_steps) throw message::unknown_length();
  return *known_planned_steps;
}

}  // namespace lockstep
