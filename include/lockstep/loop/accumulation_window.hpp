// The microbatches behind one update: their backward passes, weighted so that the window's gradient is exact.
#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/tensors/metric_totals.hpp"
#include "lockstep/tensors/step_output.hpp"

namespace lockstep {

/// Where a window stands, for messages.
struct WindowPosition {
  std::int64_t update = 1;  ///< the update this window is for, from 1
  int rank = 0;
};

/// What runs in the place of loss.backward(), on the loss as the window weighs it.
using Backward = std::function<void(const at::Tensor& loss)>;

/// Sums gradients over up to `size` microbatches.
///
/// Each loss is a mean over n samples; its backward pass runs on loss * (n / unit), so the gradients add up
/// to those of sum(n * loss) / unit, and one division by sum(n) / unit in optimizer_update gives the mean
/// over the window, however unequal its microbatches are and however few it holds. `unit` is the first
/// microbatch's n of the whole run: with equal microbatches no multiplication happens at all. A loss scale
/// goes into the same multiplication and the same division.
class AccumulationWindow {
 public:
  /// `loss_unit` 0: take that of the first microbatch with samples.
  AccumulationWindow(std::int64_t size, std::int64_t loss_unit, WindowPosition position,
                     double loss_scale = 1)
      : size_(size), loss_unit_(loss_unit), position_(position), loss_scale_(loss_scale) {}

  /// Runs one microbatch's backward pass, by `backward` if that is set. One without samples adds nothing, and its loss
  /// is not looked at.
  /// Errors: StepError `missing-num-samples`, `negative-num-samples`, `invalid-num-samples`,
  /// `undefined-loss`, `loss-not-scalar`, `loss-not-floating`, `loss-without-gradient`, `invalid-metric`;
  /// NonFiniteError `non-finite-loss`. Waits for the device, once: loss and num_samples are read.
  void add(const StepOutput& output, const Backward& backward = {});

  /// The unit that all ranks use. Whoever calls this has rescaled the gradients to it.
  void agree_on(std::int64_t loss_unit) { loss_unit_ = loss_unit; }

  [[nodiscard]] bool full() const { return microbatches_ >= size_; }
  /// The next microbatch fills it.
  [[nodiscard]] bool last() const { return microbatches_ + 1 >= size_; }
  [[nodiscard]] std::int64_t microbatches() const { return microbatches_; }
  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] std::int64_t loss_unit() const { return loss_unit_; }
  [[nodiscard]] double loss_scale() const { return loss_scale_; }
  [[nodiscard]] const WindowPosition& position() const { return position_; }
  [[nodiscard]] const MetricTotals& totals() const { return totals_; }

 private:
  std::int64_t size_;
  std::int64_t loss_unit_;
  WindowPosition position_;
  double loss_scale_;
  std::int64_t microbatches_ = 0;
  std::int64_t samples_ = 0;
  MetricTotals totals_;
};

}  // namespace lockstep
