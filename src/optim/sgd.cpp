#include "lockstep/optim/sgd.hpp"

#include <ATen/ops/_fused_sgd.h>

#include "optim/group_options.hpp"

namespace lockstep {

SGD::SGD(const ParameterGroups& groups, const SGDOptions& options,
         const std::map<std::string, SGDOptions>& of_groups)
    : Optimizer(groups, std::vector<double>(groups.size())) {
  const auto each = options_of_groups(groups, options, of_groups);
  OptionCheck check;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& [name, own, decay] = std::tie(groups[i].name, each[i], groups[i].weight_decay);
    check.not_negative(name, "lr", own.lr);
    check.not_negative(name, "momentum", own.momentum);
    check.not_negative(name, "dampening", own.dampening);
    check.not_negative(name, "weight_decay", decay);
    if (own.nesterov) {
      check.require(!(own.momentum <= 0), name, "momentum", own.momentum, "one above 0 with nesterov");
      check.require(own.dampening == 0, name, "dampening", own.dampening, "0 with nesterov");
    }
    param_groups()[i].options().set_lr(own.lr);
    groups_.push_back({own, decay});
  }
  check.finish();
}

std::string SGD::kind() const { return "SGD"; }

std::vector<std::string> SGD::state_names(std::size_t group) const {
  if (groups_[group].options.momentum == 0) return {};
  return {"momentum_buffer"};
}

OptionValues SGD::options(std::size_t group) const {
  const auto& [options, weight_decay] = groups_[group];
  return {{"lr", param_groups()[group].options().get_lr()},
          {"momentum", options.momentum},
          {"dampening", options.dampening},
          {"weight_decay", weight_decay},
          {"nesterov", options.nesterov},
          {"maximize", options.maximize}};
}

void SGD::set_option(std::size_t group, const std::string& name, const OptionValue& value) {
  auto& [options, weight_decay] = groups_[group];
  if (name == "lr") param_groups()[group].options().set_lr(std::get<double>(value));
  if (name == "momentum") options.momentum = std::get<double>(value);
  if (name == "dampening") options.dampening = std::get<double>(value);
  if (name == "weight_decay") weight_decay = std::get<double>(value);
  if (name == "nesterov") options.nesterov = std::get<bool>(value);
  if (name == "maximize") options.maximize = std::get<bool>(value);
  if (name == "momentum") state_names_changed();
}

void SGD::apply(const UpdateRange& range) {
  const auto& [options, weight_decay] = groups_[range.group];
  const auto buffers = range.state.empty() ? at::TensorList() : at::TensorList(range.state[0]);
  at::_fused_sgd_(range.parameters, range.gradients, buffers, weight_decay, options.momentum, range.lr,
                  options.dampening, options.nesterov, options.maximize, /*is_first_step=*/range.step == 1,
                  range.divisor, range.found_inf);
}

}  // namespace lockstep
