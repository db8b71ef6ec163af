// A Torch optimizer over named groups, each with exactly the options it was given.
#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/optim/parameter_groups.hpp"

namespace lockstep {

namespace detail {

/// The parameters of each group; options are the optimizer's, to be written after its construction.
inline std::vector<torch::optim::OptimizerParamGroup> torch_groups(const ParameterGroups& groups) {
  std::vector<torch::optim::OptimizerParamGroup> result;
  for (const auto& group : groups) {
    std::vector<at::Tensor> parameters;
    for (const auto& parameter : group.parameters) parameters.push_back(parameter.second);
    result.emplace_back(std::move(parameters));
  }
  return result;
}

}  // namespace detail

/// `GroupedOptimizer<torch::optim::AdamW> optimizer(weight_decay_groups(*model, 0.05), torch::optim::AdamWOptions(1e-3))`
///
/// Takes any optimizer of torch::optim whose options have weight_decay. Options are written after construction: LibTorch
/// merges a group's options with the defaults by comparing them with the values of a default-constructed object, so that
/// a group's explicit `weight_decay = 0` would be taken for "not set" and replaced.
template <class TorchOptimizer>
class GroupedOptimizer : public TorchOptimizer, public HasGroupNames {
 public:
  template <class Options>
  GroupedOptimizer(const ParameterGroups& groups, const Options& options)
      : TorchOptimizer(detail::torch_groups(groups), options) {
    for (std::size_t i = 0; i < groups.size(); ++i) {
      auto& group_options = static_cast<Options&>(this->param_groups()[i].options());
      group_options = options;
      group_options.weight_decay(groups[i].weight_decay);
      if (groups[i].lr) group_options.lr(*groups[i].lr);
      names_.push_back(groups[i].name);
    }
  }

  [[nodiscard]] const std::vector<std::string>& group_names() const override { return names_; }

 private:
  std::vector<std::string> names_;
};

}  // namespace lockstep
