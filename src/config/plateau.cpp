#include "lockstep/config/plateau.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

bool improves(const Plateau& plateau, double value, double best) {
  const bool relative = plateau.threshold_mode == Plateau::ThresholdMode::relative;
  if (plateau.direction == Direction::minimize) {
    return value < (relative ? best * (1 - plateau.threshold) : best - plateau.threshold);
  }
  return value > (relative ? best * (1 + plateau.threshold) : best + plateau.threshold);
}

}  // namespace

PlateauState Plateau::observe(double value, PlateauState state) const {
  if (std::isfinite(value) && (!state.best || improves(*this, value, *state.best))) {
    state.best = value;
    state.bad_evaluations = 0;
  } else {
    ++state.bad_evaluations;
  }
  if (state.cooldown_left > 0) {
    --state.cooldown_left;
    state.bad_evaluations = 0;
  }
  if (state.bad_evaluations > patience) {
    state.factor = std::max(state.factor * factor, minimum_factor);
    state.cooldown_left = cooldown;
    state.bad_evaluations = 0;
  }
  return state;
}

std::vector<std::string> problems(const Plateau& schedule) {
  std::vector<std::string> found;
  if (const auto slash = schedule.metric.find('/');
      slash == std::string::npos || slash == 0 || slash + 1 == schedule.metric.size()) {
    found.push_back(
        fmt::format("Plateau.metric is \"{}\": name a set and one of its metrics, for example "
                    "\"validation/loss\".",
                    schedule.metric));
  }
  if (!(schedule.factor > 0 && schedule.factor < 1)) {
    found.push_back(fmt::format("Plateau.factor is {}: give a factor between 0 and 1, for example 0.1.",
                                schedule.factor));
  }
  if (schedule.patience < 0) {
    found.push_back(fmt::format("Plateau.patience is {}: give 0 or more evaluations.", schedule.patience));
  }
  if (!std::isfinite(schedule.threshold) || schedule.threshold < 0) {
    found.push_back(
        fmt::format("Plateau.threshold is {}: give a finite number, 0 or more; which way is better is said "
                    "by direction.",
                    schedule.threshold));
  }
  if (schedule.cooldown < 0) {
    found.push_back(fmt::format("Plateau.cooldown is {}: give 0 or more evaluations.", schedule.cooldown));
  }
  if (!(schedule.minimum_factor >= 0 && schedule.minimum_factor < 1)) {
    found.push_back(fmt::format("Plateau.minimum_factor is {}: give a factor from 0 up and below 1.",
                                schedule.minimum_factor));
  }
  return found;
}

}  // namespace lockstep
