#include "loop/host_copy.hpp"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "tensors/copy_by_name.hpp"

namespace lockstep {

void HostCopy::keep(const NamedTensors& tensors) {
  const c10::AutoGradMode no_grad(false);
  if (tensors_.empty()) {
    for (const auto& [name, tensor] : tensors) {
      tensors_.emplace_back(name, at::empty_like(tensor, at::TensorOptions().device(at::kCPU)));
    }
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors_[i].second.copy_(tensors[i].second);
}

ValueSwap::ValueSwap(const NamedTensors& values, NamedTensors into) : into_(std::move(into)) {
  for (const auto& [name, tensor] : into_) before_.emplace_back(name, tensor.detach().clone());
  copy_by_name(values, into_);
}

ValueSwap::~ValueSwap() { copy_by_name(before_, into_); }

}  // namespace lockstep
