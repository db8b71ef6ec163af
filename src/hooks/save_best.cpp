#include "lockstep/hooks/save_best.hpp"

#include "hooks/watched_metric.hpp"
#include "lockstep/files/weights_file.hpp"
#include "lockstep/tensors/module_state.hpp"

namespace lockstep {

void SaveBest::evaluation_end(Run& run, Weights weights, const EvaluationResults& results) {
  const auto value = evaluated_value(run, weights, results, monitor_.metric());
  if (!value) return;
  judged_.step = run.state().step;
  const bool improved = monitor_.judge(*value, judged_).improved;
  if (improved && run.accelerator().is_main_process()) save_weights(path_, module_state(module_));
}

std::string SaveBest::name() const { return state_name("save_best", monitor_); }
NamedTensors SaveBest::state() const { return monitor_state(judged_); }
void SaveBest::load_state(const NamedTensors& state) { load_monitor_state(state, judged_); }

}  // namespace lockstep
