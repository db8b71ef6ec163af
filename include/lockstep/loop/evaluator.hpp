// Evaluation: the Step over named sets, without gradients, without a trace in the training.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/batch.hpp"
#include "lockstep/data/batch_source.hpp"
#include "lockstep/loop/step.hpp"
#include "lockstep/ranks/accelerator.hpp"
#include "lockstep/tensors/metric_totals.hpp"

namespace lockstep {

/// Set name -> metric name -> value; the mean loss is the metric `loss`. 0/0 is NaN.
using EvaluationResults = std::map<std::string, std::map<std::string, double>>;

namespace detail {

/// While it lives there are no gradients and every module is in eval mode. When it goes, on an exception too, each
/// module's own mode and the random generators are as they were.
class [[nodiscard]] EvaluationScope {
 public:
  EvaluationScope(torch::nn::Module& module, at::Device device);
  ~EvaluationScope();
  EvaluationScope(const EvaluationScope&) = delete;
  EvaluationScope& operator=(const EvaluationScope&) = delete;

 private:
  struct Saved;
  std::unique_ptr<Saved> saved_;
};

/// Sums over one set.
class SetTotals {
 public:
  void add(const StepOutput& output);
  /// Errors: DataError `empty-evaluation-set`.
  std::map<std::string, double> means(const std::string& set_name);

 private:
  std::int64_t batches_ = 0;
  MetricTotals totals_;
};

}  // namespace detail

/// What a Trainer of a `Model` needs of an Evaluator.
template <class Model>
class ModelEvaluator {
 public:
  virtual ~ModelEvaluator() = default;
  [[nodiscard]] virtual std::vector<std::string> set_names() const = 0;
  /// Every rank. Changes nothing in `model` and no generator.
  virtual EvaluationResults run(Model& model) = 0;
};

/// Runs `step` over named sets of batches. The Step needs explicit parameter types, since they say which batches the sets
/// must yield. Sums and denominators are added over all batches and divided once.
///
/// Ownership: refers to the accelerator and the sets, which outlive it; owns the Step.
///
///     Evaluator evaluator(accelerator, {{"validation", validation_loader}, {"test", test_loader}}, step);
template <class Step>
class Evaluator : public ModelEvaluator<typename detail::StepSignature<Step>::Model> {
  using Signature = detail::StepSignature<Step>;
  static_assert(Signature::known,
                "lockstep: an Evaluator's Step needs explicit parameter types: [](Net& model, const Batch& batch)");

 public:
  using Model = typename Signature::Model;
  using Batch = typename Signature::Batch;
  using Sets = std::map<std::string, BatchSource<Batch>>;

  Evaluator(Accelerator& accelerator, Sets sets, Step step)
      : accelerator_(accelerator), sets_(std::move(sets)), step_(std::move(step)) {}

  [[nodiscard]] std::vector<std::string> set_names() const override {
    std::vector<std::string> names;
    for (const auto& set : sets_) names.push_back(set.first);
    return names;
  }

  EvaluationResults run(Model& model) override {
    if constexpr (check_step<Step, Model, Batch>()) {
      const detail::EvaluationScope scope(model, accelerator_.device());
      EvaluationResults results;
      for (auto& [name, source] : sets_) {
        detail::SetTotals totals;
        source.for_each([&](const Batch& batch) { totals.add(step_(model, place(batch, accelerator_.placement()))); });
        results[name] = totals.means(name);
      }
      return results;
    }
  }

 private:
  Accelerator& accelerator_;
  Sets sets_;
  Step step_;
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
