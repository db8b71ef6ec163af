#include "loop/late_update.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cmath>

#include "lockstep/optim/gradient_norm.hpp"

namespace lockstep {

NumberUnderWay::NumberUnderWay(const at::Tensor& number) : value_(number) {
  const auto device = number.device();
  if (device.is_cpu()) return;
  const auto pinned = at::dtype(number.scalar_type()).pinned_memory(true);
  value_ = at::empty({}, pinned).copy_(number, /*non_blocking=*/true);
  arrived_.emplace(device.type()).record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

double NumberUnderWay::read() const {
  if (arrived_) arrived_->synchronize();
  return value_.item<double>();
}

NumberUnderWay launch_update(const AccumulationWindow& window, std::int64_t samples_on_all_ranks,
                             OptimizerAdapter& optimizer, WeightAverage* average,
                             const UpdateSettings& settings, const BuffersOfWindow& buffers) {
  const c10::AutoGradMode no_grad(false);
  const auto& gradients = optimizer.arena().gradients();
  at::Tensor norm = gradient_norm_on_device(gradients);
  // All in doubles on the device, where CUDA would divide by a number of the host's as it multiplies by an inverse.
  const auto number = [&norm](double value) { return at::scalar_tensor(value, norm.options()); };
  at::Tensor divisor = number(gradient_divisor(window, samples_on_all_ranks));
  norm = norm.div(divisor);
  const at::Tensor finite = at::isfinite(norm);
  if (settings.max_norm) {
    divisor = divisor.div(number(*settings.max_norm).div(norm.add(clip_addend)).clamp_max(1.0));
  }
  if (settings.max_value) {
    for (const auto& gradient : gradients) gradient.div_(divisor);
    divisor = at::ones_like(divisor);
    clip_by_value(gradients, *settings.max_value);
  }
  for (std::size_t i = 0; i < buffers.now.size(); ++i) {
    auto buffer = buffers.now[i];
    at::where_out(buffer, finite, buffer, buffers.before[i]);
  }
  const DeviceDecision decision{.divisor = divisor, .found_inf = finite.logical_not().to(at::kFloat)};
  optimizer.step({.average = average, .clear_gradients = !settings.keep_gradients, .decision = &decision});
  return NumberUnderWay(norm);
}

UpdateOutcome settle(const LateUpdate& late, OptimizerAdapter& optimizer, WeightAverage* average,
                     LossScaler* scaler) {
  const double norm = late.gradient_norm.read();
  if (!std::isfinite(norm)) {
    optimizer.take_back();
    if (average) average->take_back();
    return overflow(late.window, {}, scaler);
  }
  if (scaler) scaler->after_update();
  return {.result = UpdateResult::applied, .gradient_norm = norm};
}

double scale_if_finite(LossScaler scaler) {
  scaler.after_update();
  return scaler.scale();
}

std::vector<std::string> obstacles_to_late_updates(OptimizerAdapter& optimizer, bool optimizer_step,
                                                   bool torch_schedule, const detail::HookPoints& hooks) {
  std::vector<std::string> found;
  if (!optimizer.takes_found_inf()) found.push_back("the optimizer (" + optimizer.kind() + ")");
  if (optimizer_step) found.emplace_back("optimizer_step");
  if (torch_schedule) found.emplace_back("a schedule of Torch's");
  const auto& blocks = optimizer.arena().blocks();
  for (const auto& block : blocks) {
    if (block.parameters.device() == blocks.front().parameters.device()) continue;
    found.emplace_back("a model on several devices");
    break;
  }
  for (const auto& [point, is_used] :
       {std::pair("window_begin", !hooks.window_begin.empty()),
        std::pair("after_loss", !hooks.after_loss.empty()),
        std::pair("before_sync", !hooks.before_sync.empty()),
        std::pair("before_clip", !hooks.before_clip.empty()),
        std::pair("before_update", !hooks.before_update.empty()),
        std::pair("after_update", !hooks.after_update.empty())}) {
    if (is_used) found.push_back(std::string("a hook's ") + point);
  }
  return found;
}

}  // namespace lockstep
