// A learning rate found by trial, before a run.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/loop/trainer.hpp"

namespace lockstep {

struct RateFinderOptions {
  double min_lr = 1e-8;
  double max_lr = 1;
  /// Of the trial at most; from each to the next the rate grows by the same factor. 2 or more.
  std::int64_t updates = 100;
  /// The trial ends where the smoothed loss is above so many times its least value; more than 1. Where that is negative,
  /// it may be above it by `divergence - 1` times its size.
  double divergence = 4;
  // As in the run to come, see TrainConfig and TrainerOptions.
  std::optional<double> max_grad_norm = {};
  std::shared_ptr<torch::nn::Module> objective = nullptr;
  bool own_batches = false;
};

/// What the loss did while the rate grew.
struct RateCurve {
  struct Point {
    double lr;    ///< of an update
    double loss;  ///< before it, smoothed
  };

  std::vector<Point> points;
  /// The trial ended early: the loss grew too far, or was not finite.
  bool diverged = false;

  /// The rate where the loss falls fastest from update to update, as Lightning's finder takes it: where the central
  /// difference is least, without the first ten points and the last one. Unset if the loss never falls there.
  [[nodiscard]] std::optional<double> suggestion() const;
};

namespace detail {

/// The part of a trial that does not depend on the user's types. What a trial changes is put back when it goes: weights,
/// buffers and modes of the modules, the optimizer, and Torch's generators.
class RateTrial {
 public:
  /// Errors: ConfigError `invalid-settings`, and those of a Trainer.
  RateTrial(Accelerator& accelerator, torch::nn::Module& model, torch::optim::Optimizer& optimizer,
            const RateFinderOptions& options);
  ~RateTrial();
  RateTrial(const RateTrial&) = delete;
  RateTrial& operator=(const RateTrial&) = delete;

  /// Of the Trainer that makes the updates.
  [[nodiscard]] HookFunctions hooks(std::function<void(double)> set_lr);
  /// Takes down the loss of a microbatch. Returns the output, without samples if its loss is not finite.
  [[nodiscard]] StepOutput noted(StepOutput output);
  /// A gradient is not finite.
  void diverged();
  /// Over all ranks. Every rank.
  [[nodiscard]] RateCurve curve() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

template <class Step>
struct TrialStep {
  Step step;
  RateTrial* trial;

  template <class Model, class Batch>
  StepOutput operator()(Model& model, const Batch& batch) {
    return trial->noted(step(model, batch));
  }
  template <class Batch>
    requires MovesBatches<Step, Batch>
  Batch to_device(const Batch& batch, const Placement& where) {
    return step.to_device(batch, where);
  }
  void backward(const at::Tensor& loss)
    requires RunsBackward<Step>
  {
    step.backward(loss);
  }
};

}  // namespace detail

/// Trains for some updates while the rate of every group grows from low to high, as a run of these parts would, and puts
/// everything back: weights, buffers, modes, optimizer and generators are as before, so that a run that follows is the
/// same to the bit. Nothing is logged or saved. Every rank calls it.
///
/// Takes what a Trainer takes; call it before there is one, or between its train() calls. A source of a single pass loses
/// the batches that are read. Holds a copy of the weights and of the optimizer's state meanwhile. Errors: those of a
/// Trainer and its train() but NonFiniteError, which ends the trial.
///
///     const RateCurve curve = find_rate(accelerator, model, optimizer, loader, step);
///     Trainer trainer(accelerator, model, optimizer, loader, step);
///     if (const auto lr = curve.suggestion()) trainer.set_lr(*lr);
///
/// Source: the range test of L. N. Smith, Cyclical Learning Rates for Training Neural Networks, 2017, section 3.3.
template <class ModelHandle, class Source, class Step>
[[nodiscard]] RateCurve find_rate(Accelerator& accelerator, ModelHandle&& model, torch::optim::Optimizer& optimizer,
                                  Source& source, Step step, const RateFinderOptions& options = {}) {
  using Model = module_t<ModelHandle>;
  if constexpr (check_step<Step, Model, batch_t<Source>>()) {
    const auto held = detail::hold(model);
    detail::RateTrial trial(accelerator, *held, optimizer, options);
    using TrialStep = detail::TrialStep<Step>;
    {
      Trainer<Model, Source, TrialStep> trainer(
          accelerator, model, optimizer, source, TrialStep{std::move(step), &trial},
          {.objective = options.objective,
           .own_batches = options.own_batches,
           .hooks = trial.hooks([&trainer](double lr) { trainer.set_lr(lr); })});
      try {
        trainer.train(
            {.max_steps = options.updates, .checkpoint_every = {}, .max_grad_norm = options.max_grad_norm});
      } catch (const NonFiniteError&) {
        trial.diverged();
      }
    }
    return trial.curve();
  }
}

}  // namespace lockstep
