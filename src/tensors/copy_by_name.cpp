#include "tensors/copy_by_name.hpp"

#include <c10/core/GradMode.h>

#include <map>

namespace lockstep {

void copy_by_name(const NamedTensors& values, const NamedTensors& into) {
  const c10::AutoGradMode no_grad(false);
  const std::map<std::string, at::Tensor> by_name(values.begin(), values.end());
  for (const auto& [name, tensor] : into) {
    if (const auto found = by_name.find(name); found != by_name.end()) tensor.copy_(found->second);
  }
}

}  // namespace lockstep
