#include "lockstep/tensors/module_state.hpp"

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

namespace lockstep {

NamedTensors module_state(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& parameter : module.named_parameters())
    result.emplace_back(parameter.key(), parameter.value().detach());
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined()) result.emplace_back(buffer.key(), buffer.value().detach());
  }
  return result;
}

void place_module(torch::nn::Module& module, at::Device device, at::ScalarType floating) {
  const c10::AutoGradMode no_grad(false);
  const auto place = [&](at::Tensor tensor) {
    if (!tensor.defined()) return;
    const auto type = tensor.is_floating_point() ? floating : tensor.scalar_type();
    if (tensor.device() != device || tensor.scalar_type() != type) tensor.set_data(tensor.to(device, type));
  };
  for (const auto& parameter : module.parameters()) place(parameter);
  for (const auto& buffer : module.buffers()) place(buffer);
}

}  // namespace lockstep
