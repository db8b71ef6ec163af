#include "loop/trained_modules.hpp"

#include <torch/nn/module.h>

#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/module_state.hpp"

namespace lockstep {
namespace {

std::string objective_name(const std::string& name) { return std::string(objective_prefix) + name; }

void append(std::vector<at::Tensor>& buffers, const torch::nn::Module& module) {
  for (const auto& buffer : module.buffers()) {
    if (buffer.defined()) buffers.push_back(buffer);
  }
}

}  // namespace

TrainedModules::TrainedModules(torch::nn::Module& model, torch::nn::Module* objective, const Placement& placement)
    : model_(model), objective_(objective) {
  place_module(model_, placement.device, *placement.floating);
  for (const auto& parameter : model_.named_parameters()) parameters_.emplace_back(parameter.key(), parameter.value());
  append(buffers_, model_);
  if (objective_ == nullptr) return;

  for (const auto& tensor : lockstep::module_state(model_)) {
    if (tensor.first.starts_with(objective_prefix)) {
      throw message::invalid_settings({message::problem_objective_name(tensor.first)});
    }
  }
  place_module(*objective_, placement.device, *placement.floating);
  for (const auto& parameter : objective_->named_parameters()) {
    parameters_.emplace_back(objective_name(parameter.key()), parameter.value());
  }
  append(buffers_, *objective_);
}

NamedTensors TrainedModules::model_state() const { return module_state(model_); }

NamedTensors TrainedModules::objective_state() const {
  if (objective_ == nullptr) return {};
  NamedTensors state = module_state(*objective_);
  for (auto& tensor : state) tensor.first = objective_name(tensor.first);
  return state;
}

void TrainedModules::train() {
  model_.train();
  if (objective_ != nullptr) objective_->train();
}

}  // namespace lockstep
