#include "lockstep/hooks/freeze.hpp"

#include <torch/nn/module.h>

#include "base/hook_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/optim/parameter_groups.hpp"

namespace lockstep {

void freeze(torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) parameter.requires_grad_(false);
}

void unfreeze(torch::nn::Module& module) {
  for (const auto& parameter : module.parameters()) parameter.requires_grad_(true);
}

FreezeEpochs::FreezeEpochs(torch::nn::Module& module, Epochs epochs) : epochs_(epochs) {
  if (epochs.begin < 0) {
    throw message::invalid_settings(
        {message::problem_hook_setting("begin", std::to_string(epochs.begin), "0 or more")});
  }
  if (epochs.end && *epochs.end <= epochs.begin) {
    throw message::invalid_settings(
        {message::problem_hook_setting("end", std::to_string(*epochs.end), "an epoch after `begin`")});
  }
  for (const auto& parameter : trainable_parameters(module)) parameters_.push_back(parameter.second);
}

void FreezeEpochs::epoch_begin(Run& run) {
  const auto epoch = run.state().epoch;
  set_trainable(epoch < epochs_.begin || (epochs_.end && epoch >= *epochs_.end));
}

void FreezeEpochs::error(Run&, const std::exception_ptr&) { set_trainable(true); }

void FreezeEpochs::run_end(Run&) { set_trainable(true); }

void FreezeEpochs::set_trainable(bool trainable) {
  for (const auto& parameter : parameters_) parameter.requires_grad_(trainable);
}

}  // namespace lockstep
