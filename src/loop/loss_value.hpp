// The contract of a StepOutput, checked alike in training and in evaluation.
#pragma once

#include <ATen/core/Scalar.h>

#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/step_output.hpp"

namespace lockstep {

inline std::int64_t checked_num_samples(const StepOutput& output) {
  const std::int64_t samples = output.num_samples.value();
  if (samples == -1) throw message::missing_num_samples();
  if (samples < 0) throw message::negative_num_samples(samples);
  return samples;
}

/// Reads the loss; waits for the device.
inline double loss_value(const StepOutput& output) {
  if (!output.loss.defined()) throw message::undefined_loss();
  if (output.loss.numel() != 1) throw message::loss_not_scalar(output.loss.sizes().vec());
  if (!output.loss.is_floating_point()) throw message::loss_not_floating(c10::toString(output.loss.scalar_type()));
  return output.loss.item<double>();
}

}  // namespace lockstep
