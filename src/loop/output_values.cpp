#include "loop/output_values.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/stack.h>

#include <optional>

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

bool is_loss(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() == 1 && tensor.is_floating_point();
}

void check_loss(const at::Tensor& loss) {
  if (!loss.defined()) throw message::undefined_loss();
  if (loss.numel() != 1) throw message::loss_not_scalar(loss.sizes().vec());
  if (!loss.is_floating_point()) throw message::loss_not_floating(c10::toString(loss.scalar_type()));
}

/// A double holds every count up to 2^53.
at::Tensor as_double(const at::Tensor& tensor) { return tensor.detach().reshape({}).to(at::kDouble); }

}  // namespace

OutputValues read_values(const StepOutput& output) {
  const at::Tensor& loss = output.loss;
  const at::Tensor& count = output.num_samples.tensor();
  std::int64_t samples = output.num_samples.number();
  std::optional<double> value;
  if (count.defined()) {
    if (count.numel() != 1) throw message::num_samples_not_scalar(count.numel());
    if (!at::isIntegralType(count.scalar_type(), /*includeBool=*/false)) {
      throw message::num_samples_not_integer(c10::toString(count.scalar_type()));
    }
    if (is_loss(loss) && loss.device() == count.device()) {  // both in one transfer
      const at::Tensor both = at::stack({as_double(count), as_double(loss)}).cpu();
      samples = static_cast<std::int64_t>(both[0].item<double>());
      value = both[1].item<double>();
    } else {
      samples = count.item<std::int64_t>();
    }
  } else if (samples == -1) {
    throw message::missing_num_samples();
  }
  if (samples < 0) throw message::negative_num_samples(samples);
  if (samples == 0) return {};
  if (!value) {
    check_loss(loss);
    value = loss.item<double>();
  }
  return {.samples = samples, .loss = *value};
}

}  // namespace lockstep
