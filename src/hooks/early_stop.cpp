#include "lockstep/hooks/early_stop.hpp"

#include <utility>

#include "base/hook_messages.hpp"
#include "hooks/watched_metric.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {

EarlyStop::EarlyStop(Monitor monitor) : monitor_(std::move(monitor)) {
  const auto& patience = monitor_.options().patience;
  if (!patience || *patience >= 1) return;
  throw message::invalid_settings(
      {message::problem_hook_setting("patience", std::to_string(*patience), "1 evaluation or more")});
}

void EarlyStop::run_begin(Run& run) { end_if_out_of_patience(run); }

void EarlyStop::evaluation_end(Run& run, Weights weights, const EvaluationResults& results) {
  const auto value = evaluated_value(run, weights, results, monitor_.metric());
  if (!value) return;
  judged_.epoch = run.state().epoch;
  judged_.step = run.state().step;
  (void)monitor_.judge(*value, judged_);
  end_if_out_of_patience(run);
}

void EarlyStop::end_if_out_of_patience(Run& run) const {
  const auto waited = judged_.evaluations_without_improvement;
  if (!monitor_.options().patience || waited < *monitor_.options().patience) return;
  run.request_end(monitor_.metric() + " has not improved for " + std::to_string(waited) + " evaluations");
}

std::string EarlyStop::name() const { return state_name("early_stop", monitor_); }
NamedTensors EarlyStop::state() const { return monitor_state(judged_); }
void EarlyStop::load_state(const NamedTensors& state) { load_monitor_state(state, judged_); }

}  // namespace lockstep
