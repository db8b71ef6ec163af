#include "lockstep/hooks/parameter_statistics.hpp"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <cmath>
#include <set>

#include "lockstep/optim/parameter_groups.hpp"

namespace lockstep {
namespace {

NamedTensors parameters_of(const ParameterStatistics::Modules& modules) {
  NamedTensors all;
  std::set<const at::TensorImpl*> seen;
  for (const auto& [prefix, module] : modules) {
    for (const auto& [name, parameter] : trainable_parameters(module)) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      all.emplace_back(prefix.empty() ? name : prefix + "." + name, parameter);
    }
  }
  return all;
}

at::Tensor norm_of(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2, at::OptionalIntArrayRef(), /*keepdim=*/false, at::kDouble);
}

/// Tells whether something was added to a gradient meanwhile.
std::int64_t version_of(const at::Tensor& gradient) {
  return gradient.defined() ? static_cast<std::int64_t>(gradient._version()) : -1;
}

}  // namespace

ParameterStatistics::ParameterStatistics(const torch::nn::Module& module, ParameterStatisticsOptions options)
    : ParameterStatistics(Modules{{"", module}}, options) {}

ParameterStatistics::ParameterStatistics(const Modules& modules, ParameterStatisticsOptions options)
    : parameters_(parameters_of(modules)), options_(options) {}

void ParameterStatistics::window_begin(Run& run) {
  due_ = options_.every > 0 && (run.state().step + 1) % options_.every == 0;
  versions_.clear();
  if (!due_) return;
  for (const auto& parameter : parameters_) versions_.push_back(version_of(parameter.second.grad()));
}

void ParameterStatistics::before_clip(Run&) {
  if (!due_) return;
  const c10::AutoGradMode no_grad(false);
  std::vector<std::string> names;
  std::vector<bool> used;
  std::vector<at::Tensor> norms;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter] = parameters_[i];
    if (!parameter.requires_grad()) continue;
    const auto& gradient = parameter.grad();
    names.push_back(name);
    used.push_back(version_of(gradient) != versions_[i]);
    norms.push_back(norm_of(parameter));
    norms.push_back(gradient.defined() ? norm_of(gradient) : at::zeros({}, norms.back().options()));
  }
  values_.clear();
  if (names.empty()) return;
  const at::Tensor read = at::stack(norms).cpu();
  const auto* number = read.const_data_ptr<double>();
  double squares = 0;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& name = names[i];
    const double weight = *number++;
    const double gradient = *number++;
    squares += weight * weight;
    if (options_.weights) values_.emplace_back("weight_norm/" + name, weight);
    // Another rank may have used it.
    if (!options_.gradients || !(used[i] || gradient != 0)) continue;
    values_.emplace_back("grad_norm/" + name, gradient);
    if (weight > 0) values_.emplace_back("grad_weight_ratio/" + name, gradient / weight);
  }
  if (options_.weights) values_.emplace_back("weight_norm/total", std::sqrt(squares));
}

void ParameterStatistics::after_update(Run& run, const UpdateOutcome& outcome) {
  if (due_ && outcome.result == UpdateResult::applied) run.log(values_);
}

}  // namespace lockstep
