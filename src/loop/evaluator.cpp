#include "lockstep/loop/evaluator.hpp"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/random_state.hpp"
#include "loop/loss_value.hpp"

namespace lockstep::detail {

struct EvaluationScope::Saved {
  Saved(torch::nn::Module& module, at::Device device) : module(module), random(device), no_grad(false) {
    own_mode = module.is_training();
    for (const auto& child : module.modules(/*include_self=*/false))
      modes.emplace_back(child, child->is_training());
  }

  torch::nn::Module& module;
  RandomStateGuard random;
  c10::AutoGradMode no_grad;
  bool own_mode;
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes;
};

EvaluationScope::EvaluationScope(torch::nn::Module& module, at::Device device)
    : saved_(std::make_unique<Saved>(module, device)) {
  module.eval();
}

EvaluationScope::~EvaluationScope() {
  // train() sets a module and all below it; parents come before their children here, so each child's own mode
  // wins.
  saved_->module.train(saved_->own_mode);
  for (const auto& [child, mode] : saved_->modes) child->train(mode);
}

void SetTotals::add(const StepOutput& output) {
  ++batches_;
  if (checked_num_samples(output) > 0) totals_.add(loss_value(output), output);
}

std::map<std::string, double> SetTotals::means(const std::string& set_name) {
  if (batches_ == 0) throw message::empty_evaluation_set(set_name);
  std::map<std::string, double> result = {{"loss", std::numeric_limits<double>::quiet_NaN()}};
  for (auto& [name, mean] : totals_.means()) result[name] = mean;
  return result;
}

}  // namespace lockstep::detail
