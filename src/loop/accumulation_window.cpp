#include "lockstep/loop/accumulation_window.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/mul.h>

#include <cmath>

#include "loop/loss_value.hpp"

namespace lockstep {

void AccumulationWindow::add(const StepOutput& output) {
  const std::int64_t samples = checked_num_samples(output);
  if (samples > 0) {
    const double value = loss_value(output);
    if (!std::isfinite(value)) {
      throw message::non_finite_loss(value, position_.update, microbatches_ + 1, position_.rank);
    }
    if (!output.loss.requires_grad()) throw message::loss_without_gradient();
    if (loss_unit_ == 0) loss_unit_ = samples;
    if (samples == loss_unit_) {
      output.loss.backward();
    } else {
      at::mul(output.loss, static_cast<double>(samples) / static_cast<double>(loss_unit_)).backward();
    }
    totals_.add(value, output);
    samples_ += samples;
  }
  ++microbatches_;
}

}  // namespace lockstep
