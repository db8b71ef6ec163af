#include "lockstep/config/monitor.hpp"

#include <cmath>
#include <utility>

namespace lockstep {

Monitor::Monitor(std::string metric, MonitorOptions options)
    : metric_(std::move(metric)), options_(options) {}

Verdict Monitor::judge(double value, TrainState& state) const {
  Verdict verdict;
  if (std::isfinite(value)) {
    if (state.best_metric) {
      const double gain =
          options_.direction == Direction::minimize ? *state.best_metric - value : value - *state.best_metric;
      verdict.improved = gain > options_.min_delta;
    } else {
      verdict.improved = true;
    }
  }

  if (verdict.improved) {
    state.best_metric = value;
    state.best_step = state.step;
    state.evaluations_without_improvement = 0;
  } else if (state.epoch >= options_.start_epoch) {
    ++state.evaluations_without_improvement;
    verdict.stop = options_.patience && state.evaluations_without_improvement >= *options_.patience;
  }
  return verdict;
}

}  // namespace lockstep
