#include "lockstep/loop/accumulation_window.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/mul.h>

#include <cmath>

#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/profiler_range.hpp"
#include "loop/output_values.hpp"

namespace lockstep {

void AccumulationWindow::add(const StepOutput& output, const Backward& backward) {
  const auto [samples, loss] = read_values(output);
  if (samples > 0) {
    if (!std::isfinite(loss)) {
      throw message::non_finite_loss(loss, position_.update, microbatches_ + 1, position_.rank);
    }
    if (!output.loss.requires_grad()) throw message::loss_without_gradient();
    if (loss_unit_ == 0) loss_unit_ = samples;
    const double weight = static_cast<double>(samples) / static_cast<double>(loss_unit_) * loss_scale_;
    const at::Tensor& loss_in_window = weight == 1 ? output.loss : at::mul(output.loss, weight);
    const ProfilerRange range("lockstep::backward");
    backward ? backward(loss_in_window) : loss_in_window.backward();
    totals_.add(loss, samples, output.metrics);
    samples_ += samples;
  }
  ++microbatches_;
}

}  // namespace lockstep
