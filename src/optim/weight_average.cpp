#include "lockstep/optim/weight_average.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>

#include "lockstep/base/messages.hpp"
#include "tensors/copy_by_name.hpp"

namespace lockstep {

WeightAverage::WeightAverage(double decay, NamedTensors parameters)
    : decay_(decay), parameters_(std::move(parameters)) {
  if (!(decay >= 0 && decay < 1)) throw message::invalid_settings({message::problem_ema_decay(decay)});
  for (const auto& parameter : parameters_) tensors_.push_back(parameter.second);
}

void WeightAverage::start() {
  if (started()) return;
  for (const auto& parameter : tensors_) average_.push_back(parameter.detach().clone());
}

void WeightAverage::update() {
  const c10::AutoGradMode no_grad(false);
  at::_foreach_lerp_(average_, tensors_, 1 - decay_);
}

NamedTensors WeightAverage::named() const {
  NamedTensors result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    result.emplace_back(parameters_[i].first, started() ? average_[i] : tensors_[i].detach());
  }
  return result;
}

NamedTensors WeightAverage::over(NamedTensors state) const {
  const NamedTensors averages = named();
  const std::map<std::string, at::Tensor> by_name(averages.begin(), averages.end());
  for (auto& [name, tensor] : state) {
    if (const auto found = by_name.find(name); found != by_name.end()) tensor = found->second;
  }
  return state;
}

void WeightAverage::load(const NamedTensors& saved) {
  average_.clear();
  if (saved.empty()) return;
  start();
  copy_by_name(saved, named());
}

WeightAverage::Swap::Swap(WeightAverage& average) {
  if (!average.started()) return;
  const c10::AutoGradMode no_grad(false);
  for (const auto& parameter : average.tensors_) raw_.push_back(parameter.detach().clone());
  parameters_ = average.tensors_;
  at::_foreach_copy_(parameters_, average.average_);
}

WeightAverage::Swap::~Swap() {
  if (parameters_.empty()) return;
  const c10::AutoGradMode no_grad(false);
  at::_foreach_copy_(parameters_, raw_);
}

}  // namespace lockstep
