#include "lockstep/loop/rate_finder.hpp"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/loop_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "loop/output_values.hpp"
#include "loop/trained_modules.hpp"
#include "optim/optimizer_adapter.hpp"
#include "tensors/copy_by_name.hpp"
#include "watch/number_text.hpp"

namespace lockstep {
namespace {

/// Of what suggestion() looks at: the smoothed loss needs some updates to settle, and the last one may have left already.
constexpr std::size_t ignored_first = 10;
constexpr std::size_t ignored_last = 1;

/// An exponential mean whose weights sum to 1 from the first value on.
class SmoothedLoss {
 public:
  double add(double loss) {
    constexpr double memory = 0.98;
    mean_ = memory * mean_ + (1 - memory) * loss;
    weight_ = memory * weight_ + (1 - memory);
    return mean_ / weight_;
  }

 private:
  double mean_ = 0;
  double weight_ = 0;
};

void check(const RateFinderOptions& options) {
  std::vector<std::string> found;
  const auto need = [&found](bool holds, const char* setting, const std::string& value, const char* allowed) {
    if (!holds) found.push_back(message::problem_rate_finder(setting, value, allowed));
  };
  need(options.min_lr > 0, "min_lr", number_text(options.min_lr), "more than 0");
  need(std::isfinite(options.max_lr) && options.max_lr > options.min_lr, "max_lr", number_text(options.max_lr),
       "more than min_lr");
  need(options.updates >= 2, "updates", std::to_string(options.updates), "2 or more");
  need(options.divergence > 1, "divergence", number_text(options.divergence), "more than 1");
  if (!found.empty()) throw message::invalid_settings(found);
}

}  // namespace

std::optional<double> RateCurve::suggestion() const {
  std::optional<double> lr;
  double least = 0;
  if (points.size() <= ignored_last) return lr;
  const std::size_t end = points.size() - ignored_last;
  for (std::size_t i = ignored_first; i < end; ++i) {
    const std::size_t before = std::max(i, ignored_first + 1) - 1;
    const std::size_t after = std::min(i + 1, end - 1);
    if (before == after) continue;
    const double slope = (points[after].loss - points[before].loss) / static_cast<double>(after - before);
    if (slope >= least) continue;
    least = slope;
    lr = points[i].lr;
  }
  return lr;
}

namespace detail {
namespace {

/// Put back after the Trainer has gone, which had moved the parameters and taken over the optimizer.
class StateBefore {
 public:
  StateBefore(const Accelerator& accelerator, torch::nn::Module& model, torch::nn::Module* objective,
              torch::optim::Optimizer& optimizer)
      : modes_and_generators_(model, objective, accelerator.device()),
        modules_(model, objective, accelerator.placement()),
        adapter_(optimizer, modules_.parameters(), ParameterLayout::separate),
        restore_optimizer_(adapter_.restore_point()) {
    for (std::size_t i = 0; i < adapter_.group_names().size(); ++i) rates_.push_back(adapter_.rate(i));
    for (const auto& [name, tensor] : state()) tensors_.emplace_back(name, tensor.clone());
  }
  ~StateBefore() {
    copy_by_name(tensors_, state());
    adapter_.tie();
    restore_optimizer_();
    for (std::size_t i = 0; i < rates_.size(); ++i) adapter_.set_rate(i, rates_[i]);
  }
  StateBefore(const StateBefore&) = delete;
  StateBefore& operator=(const StateBefore&) = delete;

 private:
  [[nodiscard]] NamedTensors state() const {
    NamedTensors all = modules_.model_state();
    for (auto& tensor : modules_.objective_state()) all.push_back(std::move(tensor));
    return all;
  }

  EvaluationScope modes_and_generators_;  // train() sets what it needs of them
  TrainedModules modules_;
  OptimizerAdapter adapter_;
  std::function<void()> restore_optimizer_;
  std::vector<double> rates_;
  NamedTensors tensors_;
};

/// The losses of an update, on this rank.
struct LossSum {
  double loss = 0;
  double samples = 0;
};

}  // namespace

struct RateTrial::Impl {
  [[nodiscard]] double lr(std::size_t update) const {
    const double way = static_cast<double>(update) / static_cast<double>(options.updates - 1);
    return options.min_lr * std::pow(options.max_lr / options.min_lr, way);
  }

  void end_update() {
    sums.push_back(window);
    if (window.samples == 0) return;
    const double loss = smoothed.add(window.loss / window.samples);
    least = std::min(least, loss);
    diverged |= loss - least > (options.divergence - 1) * std::abs(least);
  }

  Accelerator& accelerator;
  RateFinderOptions options;
  StateBefore before;
  LossSum window = {};  // the update under way
  std::vector<LossSum> sums = {};
  SmoothedLoss smoothed = {};
  double least = std::numeric_limits<double>::infinity();
  bool diverged = false;  // on this rank
};

RateTrial::RateTrial(Accelerator& accelerator, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                     const RateFinderOptions& options) {
  check(options);
  impl_.reset(new Impl{accelerator, options, {accelerator, model, options.objective.get(), optimizer}});
}

RateTrial::~RateTrial() = default;

HookFunctions RateTrial::hooks(std::function<void(double)> set_lr) {
  auto& trial = *impl_;
  return {.window_begin =
              [&trial, set_lr = std::move(set_lr)](Run& run) {
                trial.window = {};
                set_lr(trial.lr(static_cast<std::size_t>(run.state().step)));
              },
          .after_update =
              [&trial](Run& run, const UpdateOutcome& outcome) {
                if (outcome.result == UpdateResult::applied) trial.end_update();
                if (trial.diverged) run.request_end("the loss diverges");
              }};
}

StepOutput RateTrial::noted(StepOutput output) {
  const auto [samples, loss] = read_values(output);
  if (!std::isfinite(loss)) {
    // Left out rather than thrown, so that all ranks end together, whichever saw it.
    impl_->diverged = true;
    return {.loss = output.loss, .num_samples = 0};
  }
  impl_->window.loss += loss * static_cast<double>(samples);
  impl_->window.samples += static_cast<double>(samples);
  return output;
}

void RateTrial::diverged() { impl_->diverged = true; }

RateCurve RateTrial::curve() const {
  const auto& trial = *impl_;
  std::vector<double> numbers{trial.diverged ? 1.0 : 0.0};
  for (const auto& sum : trial.sums) numbers.insert(numbers.end(), {sum.loss, sum.samples});
  const at::Tensor totals =
      trial.accelerator.reduce(at::tensor(numbers, at::kDouble).to(trial.accelerator.device())).cpu();
  const auto* total = totals.const_data_ptr<double>();
  RateCurve curve;
  curve.diverged = *total++ > 0;
  SmoothedLoss smoothed;
  for (std::size_t update = 0; update < trial.sums.size(); ++update, total += 2) {
    curve.points.push_back({.lr = trial.lr(update), .loss = smoothed.add(total[0] / total[1])});
  }
  return curve;
}

}  // namespace detail
}  // namespace lockstep
