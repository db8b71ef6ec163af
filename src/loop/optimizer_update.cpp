#include "loop/optimizer_update.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_div.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "lockstep/base/messages.hpp"
#include "lockstep/optim/gradient_norm.hpp"

namespace lockstep {

UpdateOutcome overflow(const AccumulationWindow& window, const std::vector<std::string>& parameters,
                       LossScaler* scaler) {
  const auto& [update, rank] = window.position();
  if (!scaler) throw message::non_finite_gradient(parameters, update, rank);
  if (window.loss_scale() <= smallest_loss_scale) {
    throw message::endless_overflow(parameters, window.loss_scale(), update, rank);
  }
  // A scale that has come down since is no part of it.
  if (window.loss_scale() <= scaler->scale()) scaler->after_overflow();
  return {.result = UpdateResult::skipped_overflow};
}

double gradient_divisor(const AccumulationWindow& window, std::int64_t samples_on_all_ranks) {
  return static_cast<double>(samples_on_all_ranks) / static_cast<double>(window.loss_unit()) *
         window.loss_scale();
}

void clip_by_value(const std::vector<at::Tensor>& gradients, double max_value) {
  at::_foreach_clamp_min_(gradients, -max_value);
  at::_foreach_clamp_max_(gradients, max_value);
}

MeanGradient mean_gradient(const AccumulationWindow& window, std::int64_t samples_on_all_ranks, OptimizerAdapter& optimizer,
                           const UpdateSettings& settings) {
  const c10::AutoGradMode no_grad(false);
  const auto& gradients = optimizer.arena().gradients();
  double divisor = gradient_divisor(window, samples_on_all_ranks);

  double norm = gradient_norm(gradients) / divisor;
  if (!std::isfinite(norm)) {
    const auto names = not_finite(optimizer.parameters());
    if (!names.empty()) return {.not_finite = names};
    norm = exact_gradient_norm(gradients) / divisor;
  }

  const auto divide = [&] {
    if (!gradients.empty()) at::_foreach_div_(gradients, divisor);
    divisor = 1;
  };
  if (settings.before_clip) {
    divide();
    settings.before_clip();
    norm = gradient_norm(gradients);
  }
  if (settings.max_norm) divisor /= std::min(1.0, *settings.max_norm / (norm + clip_addend));
  if (settings.max_value || settings.before_update) divide();
  if (!gradients.empty() && settings.max_value) clip_by_value(gradients, *settings.max_value);
  if (settings.before_update) settings.before_update();
  return {.norm = norm, .divisor = divisor};
}

UpdateOutcome optimizer_update(const AccumulationWindow& window, std::int64_t samples_on_all_ranks,
                               OptimizerAdapter& optimizer, WeightAverage* average,
                               const UpdateSettings& settings, LossScaler* scaler) {
  if (samples_on_all_ranks == 0) return {.result = UpdateResult::skipped_empty};
  const c10::AutoGradMode no_grad(false);
  const MeanGradient gradient = mean_gradient(window, samples_on_all_ranks, optimizer, settings);
  if (!gradient.not_finite.empty()) return overflow(window, gradient.not_finite, scaler);

  if (average) average->start();
  optimizer.step({.divisor = gradient.divisor, .average = average, .clear_gradients = !settings.keep_gradients});
  if (scaler) scaler->after_update();
  return {.result = UpdateResult::applied, .gradient_norm = gradient.norm};
}

}  // namespace lockstep
