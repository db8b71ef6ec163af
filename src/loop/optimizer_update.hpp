// The one place where gradients become weights.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/loop/accumulation_window.hpp"
#include "lockstep/loop/update_outcome.hpp"
#include "lockstep/optim/loss_scaler.hpp"
#include "lockstep/optim/weight_average.hpp"
#include "optim/optimizer_adapter.hpp"

namespace lockstep {

struct UpdateSettings {
  std::optional<double> max_norm = {};   ///< unset: not clipped by the norm
  std::optional<double> max_value = {};  ///< of any one element, after the norm
  /// Gradients are wanted after the update, as the optimizer got them; else they may be cleared in its pass.
  bool keep_gradients = false;
  /// Sees the finite mean gradient of all ranks, and may change it; its norm is measured again then. Unset: nobody.
  std::function<void()> before_clip = {};
  /// Sees the gradient as the optimizer gets it.
  std::function<void()> before_update = {};
};

/// A window's gradient as the optimizer is to get it, but for one division.
struct MeanGradient {
  double norm = 0;                           ///< before clipping
  double divisor = 1;                        ///< what all elements are still to be divided by
  std::vector<std::string> not_finite = {};  ///< parameters; if there are any, nothing was done but to look
};

/// In the denominator of a clip factor: that of torch.nn.utils.clip_grad_norm_, so that clipped runs follow Python's.
constexpr double clip_addend = 1e-6;

/// What summed gradients are divided by to be those of the mean loss: samples, in the loss's unit, and the loss scale.
double gradient_divisor(const AccumulationWindow& window, std::int64_t samples_on_all_ranks);

/// Of at least one gradient.
void clip_by_value(const std::vector<at::Tensor>& gradients, double max_value);

/// What to do about gradients that are not finite, those of `parameters`; empty: nobody knows whose. Errors: as below.
UpdateOutcome overflow(const AccumulationWindow& window, const std::vector<std::string>& parameters,
                       LossScaler* scaler);

/// Measures the window's summed gradients and clips them. The arena's window is closed. Waits for the device.
MeanGradient mean_gradient(const AccumulationWindow& window, std::int64_t samples_on_all_ranks, OptimizerAdapter& optimizer,
                           const UpdateSettings& settings);

/// Divides the window's summed gradients by its samples on all ranks and its loss scale, measures their norm,
/// refuses what is not finite, clips, steps the optimizer, moves the average, and tells the scaler. Nothing
/// is changed when it throws; nothing but the scaler when it skips. The arena's window is closed.
///
/// A window in which no parameter got a gradient is an update that changes no parameter. `scaler`: null where
/// losses are not scaled. Errors, naming the first parameters concerned: NonFiniteError `non-finite-gradient`
/// without a scaler, `endless-overflow` with one whose scale cannot come down further. Waits for the device.
UpdateOutcome optimizer_update(const AccumulationWindow& window, std::int64_t samples_on_all_ranks,
                               OptimizerAdapter& optimizer, WeightAverage* average,
                               const UpdateSettings& settings, LossScaler* scaler = nullptr);

}  // namespace lockstep
