#include "lockstep/data/collate.hpp"

#include <ATen/ops/stack.h>

#include <sstream>

namespace lockstep::detail {

namespace {

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  std::ostringstream text;
  text << tensor.scalar_type() << ' ' << tensor.sizes();
  return text.str();
}

}  // namespace

at::Tensor stack_samples(const std::vector<at::Tensor>& samples) {
  const at::Tensor& first = samples.front();
  for (const at::Tensor& sample : samples) {
    // Stacking would promote other types in silence, and then a batch's type would hang on who is in it.
    const bool even =
        sample.defined() == first.defined() &&
        (!first.defined() || (sample.sizes() == first.sizes() && sample.dtype() == first.dtype()));
    if (!even) throw message::uneven_samples(describe(first), describe(sample));
  }
  return first.defined() ? at::stack(samples) : at::Tensor();
}

}  // namespace lockstep::detail
