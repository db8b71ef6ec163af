// An update that the host launches before it knows whether the gradients are finite: where they are not, the
// device itself leaves everything as it is. What became of it is read later, so that no update waits for the
// device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/loop/accumulation_window.hpp"
#include "lockstep/loop/hooks.hpp"
#include "lockstep/loop/update_outcome.hpp"
#include "lockstep/optim/loss_scaler.hpp"
#include "lockstep/optim/weight_average.hpp"
#include "lockstep/tensors/random_state.hpp"
#include "loop/optimizer_update.hpp"
#include "loop/shared_run.hpp"
#include "optim/optimizer_adapter.hpp"

namespace lockstep {

/// A number on its way from the device to the host.
class NumberUnderWay {
 public:
  /// `number`: one element. Waits for nothing.
  explicit NumberUnderWay(const at::Tensor& number);
  /// Waits for what was launched before it alone.
  [[nodiscard]] double read() const;

 private:
  at::Tensor value_;                   // in host memory
  std::optional<c10::Event> arrived_;  // unset: it was there at once
};

/// Tensors that a skipped update puts back; both in one order.
struct BuffersOfWindow {
  const std::vector<at::Tensor>& now;
  const std::vector<at::Tensor>& before;
};

/// What is known of it until it is settled.
struct LateUpdate {
  AccumulationWindow window;
  AgreedWindow agreed;
  GeneratorCopies random_before;  ///< before the window, where a failed one could be saved
  NumberUnderWay gradient_norm;   ///< before clipping; not finite: nothing was changed
};

/// Does what optimizer_update() does, for a window with samples and gradients, and returns the gradients'
/// norm. Hooks of `settings` are not called. A norm that overflows though all gradients are finite counts as
/// not finite here.
NumberUnderWay launch_update(const AccumulationWindow& window, std::int64_t samples_on_all_ranks,
                             OptimizerAdapter& optimizer, WeightAverage* average,
                             const UpdateSettings& settings, const BuffersOfWindow& buffers);

/// What became of it; tells the scaler. Waits for that update alone. Errors: those of optimizer_update(),
/// without the names of parameters.
UpdateOutcome settle(const LateUpdate& late, OptimizerAdapter& optimizer, WeightAverage* average,
                     LossScaler* scaler);

/// The scale of the window after one that is not settled: what it is if that one's gradients are finite.
double scale_if_finite(LossScaler scaler);

/// What in a run has to know of each update at once, each the subject of a sentence; empty: updates can be
/// late.
std::vector<std::string> obstacles_to_late_updates(OptimizerAdapter& optimizer, bool optimizer_step,
                                                   bool torch_schedule, const detail::HookPoints& hooks);

}  // namespace lockstep
