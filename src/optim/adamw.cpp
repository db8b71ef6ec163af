#include "lockstep/optim/adamw.hpp"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>

#include "optim/group_options.hpp"

namespace lockstep {
namespace {

/// Calls one of the two fused operations, which differ in nothing but their name.
template <class Operation>
void fused(Operation operation, const UpdateRange& range, const AdamOptions& options, double weight_decay) {
  const auto largest = options.amsgrad ? at::TensorList(range.state[2]) : at::TensorList();
  operation(range.parameters, range.gradients, range.state[0], range.state[1], largest, range.step_tensor,
            range.lr, options.beta1, options.beta2, weight_decay, options.eps, options.amsgrad,
            options.maximize, range.divisor, range.found_inf);
}

}  // namespace

Adam::Adam(const ParameterGroups& groups, const AdamOptions& options,
           const std::map<std::string, AdamOptions>& of_groups)
    : Optimizer(groups, std::vector<double>(groups.size())) {
  const auto each = options_of_groups(groups, options, of_groups);
  OptionCheck check;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& [name, own, decay] = std::tie(groups[i].name, each[i], groups[i].weight_decay);
    check.not_negative(name, "lr", own.lr);
    check.below_one(name, "beta1", own.beta1);
    check.below_one(name, "beta2", own.beta2);
    check.not_negative(name, "eps", own.eps);
    check.not_negative(name, "weight_decay", decay);
    param_groups()[i].options().set_lr(own.lr);
    groups_.push_back({own, decay});
  }
  check.finish();
}

std::string Adam::kind() const { return "Adam"; }
std::string AdamW::kind() const { return "AdamW"; }

std::vector<std::string> Adam::state_names(std::size_t group) const {
  if (groups_[group].options.amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

OptionValues Adam::options(std::size_t group) const {
  const auto& [options, weight_decay] = groups_[group];
  return {{"lr", param_groups()[group].options().get_lr()},
          {"betas", std::vector<double>{options.beta1, options.beta2}},
          {"eps", options.eps},
          {"weight_decay", weight_decay},
          {"amsgrad", options.amsgrad},
          {"maximize", options.maximize}};
}

void Adam::set_option(std::size_t group, const std::string& name, const OptionValue& value) {
  auto& [options, weight_decay] = groups_[group];
  if (name == "lr") param_groups()[group].options().set_lr(std::get<double>(value));
  if (name == "betas") options.beta1 = std::get<std::vector<double>>(value).at(0);
  if (name == "betas") options.beta2 = std::get<std::vector<double>>(value).at(1);
  if (name == "eps") options.eps = std::get<double>(value);
  if (name == "weight_decay") weight_decay = std::get<double>(value);
  if (name == "amsgrad") options.amsgrad = std::get<bool>(value);
  if (name == "maximize") options.maximize = std::get<bool>(value);
  if (name == "amsgrad") state_names_changed();
}

void Adam::apply(const UpdateRange& range) {
  const auto& [options, weight_decay] = groups_[range.group];
  fused([](auto&&... arguments) { at::_fused_adam_(arguments...); }, range, options, weight_decay);
}

void AdamW::apply(const UpdateRange& range) {
  const auto& [options, weight_decay] = groups_[range.group];
  fused([](auto&&... arguments) { at::_fused_adamw_(arguments...); }, range, options, weight_decay);
}

}  // namespace lockstep
