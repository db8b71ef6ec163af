// Evaluation: the Step over named sets, without gradients, without a trace in the training.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/config/batch_limit.hpp"
#include "lockstep/config/interval.hpp"
#include "lockstep/data/batch.hpp"
#include "lockstep/data/batch_source.hpp"
#include "lockstep/loop/step.hpp"
#include "lockstep/ranks/accelerator.hpp"
#include "lockstep/tensors/metric_totals.hpp"
#include "lockstep/tensors/profiler_range.hpp"

namespace lockstep {

/// Set name -> metric name -> value; the mean loss is the metric `loss`. 0/0 is NaN.
using EvaluationResults = std::map<std::string, std::map<std::string, double>>;

struct EvaluatorOptions {
  /// Sets that the Trainer evaluates at an interval of their own instead of TrainConfig::evaluate_every.
  std::map<std::string, Interval> every = {};
};

/// What one evaluation covers.
struct EvaluationRequest {
  std::vector<std::string> sets;
  std::optional<BatchLimit> limit_batches = {};  ///< of each set
  torch::nn::Module* objective = nullptr;        ///< goes into eval mode with the model; null: there is none
  /// Called after each batch of this rank, with the name of its set. Unset: nobody is.
  std::function<void(const std::string&, const StepOutput&)> after_batch = {};
};

namespace detail {

/// While it lives there are no gradients, and the module, and the objective if there is one, are in eval mode. When it
/// goes, on an exception too, each module's own mode and the random generators are as they were.
class [[nodiscard]] EvaluationScope {
 public:
  EvaluationScope(torch::nn::Module& module, torch::nn::Module* objective, at::Device device);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

/// Sums over one set, of this rank.
struct SetTotals {
  void add(const StepOutput& output);

  std::int64_t batches = 0;
  MetricTotals totals;
};

/// The means over all ranks. Errors: DataError `empty-evaluation-set`, and those of Agreement::meet().
EvaluationResults results_over_ranks(std::map<std::string, SetTotals>& sets, Agreement& agreement);

/// Errors: ConfigError `invalid-settings`.
void check_evaluator(const std::vector<std::string>& sets, const EvaluatorOptions& options);

}  // namespace detail

/// What a Trainer of a `Model` needs of an Evaluator.
template <class Model>
class ModelEvaluator {
 public:
  virtual ~ModelEvaluator() = default;
  [[nodiscard]] virtual std::vector<std::string> set_names() const = 0;
  [[nodiscard]] virtual const EvaluatorOptions& options() const = 0;
  /// Batches of all ranks in each set where that is known.
  [[nodiscard]] virtual std::map<std::string, std::int64_t> set_batches() const = 0;

  /// Evaluates the sets asked for. Every rank. Changes nothing in `model` and no generator.
  virtual EvaluationResults evaluate(Model& model, const EvaluationRequest& request) = 0;
  /// Evaluates all of all sets.
  EvaluationResults run(Model& model) { return evaluate(model, {.sets = set_names()}); }
};

/// Runs `step` over named sets of batches. The Step needs explicit parameter types, since they say which batches the sets
/// must yield. Sums and denominators are added over all batches and divided once.
///
/// Ownership: refers to the accelerator and the sets, which outlive it; owns the Step.
///
///     Evaluator evaluator(accelerator, {{"validation", validation_loader}, {"rare", rare_loader}}, step,
///                         {.every = {{"rare", {.every = 5}}}});          // every 5 epochs
///
/// Errors: ConfigError `invalid-settings`.
template <class Step>
class Evaluator : public ModelEvaluator<typename detail::StepSignature<Step>::Model> {
  using Signature = detail::StepSignature<Step>;
  static_assert(Signature::known,
                "lockstep: an Evaluator's Step needs explicit parameter types: [](Net& model, const Batch& batch)");

 public:
  using Model = typename Signature::Model;
  using Batch = typename Signature::Batch;
  using Sets = std::map<std::string, BatchSource<Batch>>;

  Evaluator(Accelerator& accelerator, Sets sets, Step step, EvaluatorOptions options = {})
      : accelerator_(accelerator), sets_(std::move(sets)), step_(std::move(step)), options_(std::move(options)) {
    detail::check_evaluator(set_names(), options_);
  }

  [[nodiscard]] std::vector<std::string> set_names() const override {
    std::vector<std::string> names;
    for (const auto& set : sets_) names.push_back(set.first);
    return names;
  }

  [[nodiscard]] const EvaluatorOptions& options() const override { return options_; }

  [[nodiscard]] std::map<std::string, std::int64_t> set_batches() const override {
    std::map<std::string, std::int64_t> known;
    for (const auto& [name, set] : sets_) {
      if (const auto batches = set.size(shard())) known.emplace(name, *batches);
    }
    return known;
  }

  EvaluationResults evaluate(Model& model, const EvaluationRequest& request) override {
    if constexpr (check_step<Step, Model, Batch>()) {
      const ProfilerRange range("lockstep::evaluate");
      std::map<std::string, detail::SetTotals> totals;
      for (const auto& name : request.sets) totals[name];
      auto& agreement = accelerator_.agreement();
      agreement.locally([&] {
        const detail::EvaluationScope scope(model, request.objective, accelerator_.device());
        for (auto& [name, total] : totals) {
          sets_.at(name).for_each(
              request.limit_batches, shard(),
              [&, &name = name, &total = total](const Batch& batch) {
                const StepOutput output = detail::call_step(step_, model, batch, accelerator_);
                total.add(output);
                if (request.after_batch) request.after_batch(name, output);
              });
        }
      });
      return detail::results_over_ranks(totals, agreement);
    }
  }

 private:
  [[nodiscard]] Shard shard() const {
    return {.rank = accelerator_.rank(), .ranks = accelerator_.world_size(), .pad = false};
  }

  Accelerator& accelerator_;
  Sets sets_;
  Step step_;
  EvaluatorOptions options_;
};

/// Refers to an Evaluator for a certain model type, or to none.
template <class Model>
class EvaluatorRef {
 public:
  EvaluatorRef() = default;
  EvaluatorRef(std::nullptr_t) {}
  template <class AnyEvaluator>
  EvaluatorRef(AnyEvaluator* evaluator) {
    constexpr bool fits = std::is_base_of_v<ModelEvaluator<Model>, AnyEvaluator>;
    static_assert(fits, "lockstep: this Evaluator's Step takes another module type than the Trainer's model");
    if constexpr (fits) evaluator_ = evaluator;
  }

  [[nodiscard]] ModelEvaluator<Model>* get() const { return evaluator_; }

 private:
  ModelEvaluator<Model>* evaluator_ = nullptr;
};

}  // namespace lockstep
