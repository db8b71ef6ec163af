#include "lockstep/optim/parameter_groups.hpp"

#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "lockstep/base/messages.hpp"

namespace lockstep {

NamedTensors trainable_parameters(const torch::nn::Module& module) {
  NamedTensors result;
  std::unordered_set<const at::TensorImpl*> seen;
  for (const auto& parameter : module.named_parameters()) {
    if (!parameter.value().requires_grad()) continue;
    if (seen.insert(parameter.value().unsafeGetTensorImpl()).second) {
      result.emplace_back(parameter.key(), parameter.value());
    }
  }
  return result;
}

DecayExclusion no_weight_decay(std::vector<std::string> name_parts) {
  return [parts = std::move(name_parts)](const std::string& name, const at::Tensor& parameter) {
    return parameter.dim() < 2 || std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
             return name.find(part) != std::string::npos;
           });
  };
}

ParameterGroups weight_decay_groups(const torch::nn::Module& module, double weight_decay,
                                    const DecayExclusion& exclude) {
  if (!std::isfinite(weight_decay) || weight_decay < 0) {
    throw message::invalid_settings({message::problem_weight_decay(weight_decay)});
  }
  ParameterGroup decay{.name = "decay", .parameters = {}, .weight_decay = weight_decay};
  ParameterGroup no_decay{.name = "no_decay", .parameters = {}, .weight_decay = 0};
  for (const auto& [name, parameter] : trainable_parameters(module)) {
    const bool exempt = exclude ? exclude(name, parameter) : parameter.dim() < 2;
    (exempt ? no_decay : decay).parameters.emplace_back(name, parameter);
  }
  ParameterGroups groups;
  if (!decay.parameters.empty()) groups.push_back(std::move(decay));
  if (!no_decay.parameters.empty()) groups.push_back(std::move(no_decay));
  if (groups.empty()) throw message::no_trainable_parameter();
  return groups;
}

}  // namespace lockstep
