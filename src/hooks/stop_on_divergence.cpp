#include "lockstep/hooks/stop_on_divergence.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/add.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/hook_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "watch/number_text.hpp"

namespace lockstep {
namespace {

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) { return a.defined() ? at::add(a, b) : b; }

}  // namespace

StopOnDivergence::StopOnDivergence(StopOnDivergenceOptions options) : options_(options) {
  std::vector<std::string> found;
  const auto need = [&found](bool holds, const char* setting, const std::string& value, const char* allowed) {
    if (!holds) found.push_back(message::problem_hook_setting(setting, value, allowed));
  };
  need(options.every >= 1, "every", std::to_string(options.every), "1 or more");
  need(options.memory >= 1, "memory", std::to_string(options.memory), "1 or more");
  need(options.factor > 1, "factor", number_text(options.factor), "more than 1");
  if (!found.empty()) throw message::invalid_settings(found);
}

void StopOnDivergence::window_begin(Run&) { window_ = {}; }

void StopOnDivergence::after_loss(Run&, const StepOutput& output) {
  // What is wrong with a loss is the Trainer's to say, and a microbatch without samples has none.
  if (!output.loss.defined() || output.loss.numel() != 1) return;
  window_.loss = sum_of(window_.loss, output.loss.detach().reshape({}).to(at::kDouble));
  ++window_.count;
}

void StopOnDivergence::after_update(Run& run, const UpdateOutcome&) {
  const Sum window = std::exchange(window_, {});
  if (window.count > 0) short_ = {sum_of(short_.loss, window.loss), short_.count + window.count};
  if (++updates_ == options_.every) look(run);
}

void StopOnDivergence::look(Run& run) {
  updates_ = 0;
  const Sum sum = std::exchange(short_, {});
  if (sum.count == 0) return;
  const double mean = sum.loss.item<double>() / static_cast<double>(sum.count);
  if (!std::isfinite(mean)) return;
  if (looks_ > 0 && mean - long_mean_ > (options_.factor - 1) * std::abs(long_mean_)) {
    run.request_stop("the loss diverges: its mean over the last " + std::to_string(options_.every) +
                     " updates is " + number_text(mean) + ", before that it was " + number_text(long_mean_));
  }
  looks_ = std::min(looks_ + 1, options_.memory);
  long_mean_ += (mean - long_mean_) / static_cast<double>(looks_);
}

NamedTensors StopOnDivergence::state() const {
  const double sum = short_.loss.defined() ? short_.loss.item<double>() : 0;
  return {{"means", at::tensor({sum, long_mean_}, at::kDouble)},
          {"counts", at::tensor({short_.count, updates_, looks_}, at::kLong)}};
}

void StopOnDivergence::load_state(const NamedTensors& state) {
  const at::Tensor& means = state.at(0).second;
  const at::Tensor& counts = state.at(1).second;
  short_ = {.loss = {}, .count = counts[0].item<std::int64_t>()};
  if (short_.count > 0) short_.loss = means[0];
  long_mean_ = means[1].item<double>();
  updates_ = counts[1].item<std::int64_t>();
  looks_ = counts[2].item<std::int64_t>();
}

}  // namespace lockstep
