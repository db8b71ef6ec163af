#include "lockstep/hooks/early_stop.hpp"

#include "hooks/watched_metric.hpp"

namespace lockstep {

void EarlyStop::evaluation_end(Run& run, Weights weights, const EvaluationResults& results) {
  const auto value = evaluated_value(run, weights, results, monitor_.metric());
  if (!value) return;
  judged_.epoch = run.state().epoch;
  judged_.step = run.state().step;
  if (monitor_.judge(*value, judged_).stop) {
    run.request_stop(monitor_.metric() + " has not improved for " +
                     std::to_string(judged_.evaluations_without_improvement) + " evaluations");
  }
}

std::string EarlyStop::name() const { return state_name("early_stop", monitor_); }
NamedTensors EarlyStop::state() const { return monitor_state(judged_); }
void EarlyStop::load_state(const NamedTensors& state) { load_monitor_state(state, judged_); }

}  // namespace lockstep
