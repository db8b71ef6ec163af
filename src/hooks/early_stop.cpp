#include "lockstep/hooks/early_stop.hpp"

#include "hooks/monitor_state.hpp"
#include "loop/metric_names.hpp"

namespace lockstep {

std::optional<double> evaluated_value(const Run& run, Weights weights, const EvaluationResults& results,
                                      const std::string& metric) {
  const bool beside_averages = weights == Weights::raw && run.config().evaluate_raw;
  if (is_raw(metric) != beside_averages || !results.contains(set_of(metric))) return {};
  Values values;
  append(values, beside_averages ? raw_prefix : "", results);
  return value_of(metric, values);
}

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
