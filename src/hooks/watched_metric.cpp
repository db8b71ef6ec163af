#include "hooks/watched_metric.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

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

std::string state_name(std::string hook, const Monitor& monitor) {
  std::string name = std::move(hook) + ":" + monitor.metric();
  std::replace(name.begin(), name.end(), '/', '.');
  return name;
}

NamedTensors monitor_state(const TrainState& judged) {
  NamedTensors state{{"waited", at::tensor({judged.evaluations_without_improvement}, at::kLong)}};
  if (judged.best_metric) state.emplace_back("best", at::tensor({*judged.best_metric}, at::kDouble));
  if (judged.best_step) state.emplace_back("step", at::tensor({*judged.best_step}, at::kLong));
  return state;
}

void load_monitor_state(const NamedTensors& state, TrainState& judged) {
  judged = {};
  for (const auto& [name, tensor] : state) {
    if (name == "waited") judged.evaluations_without_improvement = tensor.item<std::int64_t>();
    if (name == "best") judged.best_metric = tensor.item<double>();
    if (name == "step") judged.best_step = tensor.item<std::int64_t>();
  }
}

}  // namespace lockstep
