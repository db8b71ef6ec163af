#include "lockstep/data/collate.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <sstream>

#include "lockstep/data/batch_buffers.hpp"

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
  if (!first.defined()) return first;
  if (!first.is_cpu() || at::GradMode::is_enabled()) return at::stack(samples);
  c10::DimVector sizes{static_cast<std::int64_t>(samples.size())};
  sizes.append(first.sizes().begin(), first.sizes().end());
  auto batch = empty_batch(sizes, first.scalar_type());
  // Of one key set: none is on another device, nor sparse.
  const bool plain = std::ranges::all_of(
      samples, [&batch](const at::Tensor& sample) { return sample.key_set() == batch.key_set(); });
  return plain ? at::stack_out(batch, samples) : at::stack(samples);
}

}  // namespace lockstep::detail
