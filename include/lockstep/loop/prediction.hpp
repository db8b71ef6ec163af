// Predictions: what a function makes of all samples of a source, in their order.
//
//   auto classify = [](Net& net, const Batch& batch) -> at::Tensor {
//     return net.forward(batch.data).argmax(1);
//   };
//
// Valid: any callable as classify(Net&, const Batch&) that returns a tensor with a row for each sample of the
// batch, or several by name, as Outputs. Invalid: one that returns a mean over the batch, or a StepOutput.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/batch_source.hpp"
#include "lockstep/loop/evaluator.hpp"
#include "lockstep/loop/step.hpp"
#include "lockstep/ranks/accelerator.hpp"

namespace lockstep {

/// Several outputs by name; each has a row for every sample.
using Outputs = std::map<std::string, at::Tensor>;

namespace detail {

/// The outputs of this rank's batches, until those of all ranks are put together.
class Predictions {
 public:
  /// Of a batch that holds these samples of a data set. Errors: StepError `prediction-rows`,
  /// `predictions-differ`, `undefined-prediction`.
  void add(const Outputs& outputs, std::span<const std::int64_t> samples);
  /// Of the `batch`-th batch of all ranks, of any number of samples. Errors: the same.
  void add(const Outputs& outputs, std::int64_t batch);

  /// Everything, on every rank and on the CPU, by sample or batch. Every rank calls it. Errors: StepError
  /// `predictions-differ`, DataError `nothing-to-predict`, and those of Agreement::meet().
  [[nodiscard]] Outputs over_ranks(Agreement& agreement) &&;

 private:
  void keep(const Outputs& outputs, std::optional<std::int64_t> rows);

  std::map<std::string, std::vector<at::Tensor>> parts_;  // on the CPU, and nobody else's
  std::vector<std::int64_t> places_;                      // of each row: its sample, or its batch
};

/// Errors: ConfigError `invalid-settings`.
void check_prediction_source(const DataLoaderOptions& options, std::int64_t dataset_size);

template <class Function, class Model, class Batch>
consteval bool check_prediction() {
  if constexpr (!std::is_invocable_v<Function&, Model&, const Batch&>) {
    static_assert(std::is_invocable_v<Function&, Model&, const Batch&>,
                  "lockstep: what predicts is called as predict(module&, const Batch&), with batches of the "
                  "source that it is given, and this one cannot be");
    return false;
  } else {
    using Result = std::remove_cvref_t<std::invoke_result_t<Function&, Model&, const Batch&>>;
    constexpr bool fits = std::same_as<Result, at::Tensor> || std::same_as<Result, Outputs>;
    static_assert(
        fits,
        "lockstep: what predicts returns an at::Tensor, or several by name as lockstep::Outputs, with "
        "a row for each sample of the batch");
    return fits;
  }
}

/// The outputs of this rank's part of the source.
template <class Function, class Model, class Source>
Predictions predictions_of_rank(Function& function, Model& model, Source& source,
                                const Accelerator& accelerator) {
  using Batch = batch_t<Source>;
  const Shard shard{.rank = accelerator.rank(), .ranks = accelerator.world_size(), .pad = false};
  const auto outputs_of = [&](const Batch& batch) -> Outputs {
    using Result = std::remove_cvref_t<std::invoke_result_t<Function&, Model&, const Batch&>>;
    if constexpr (std::same_as<Result, Outputs>) {
      return call_step(function, model, batch, accelerator);
    } else {
      return {{"", call_step(function, model, batch, accelerator)}};
    }
  };

  Predictions predictions;
  BatchStream<Source> batches(source, 0, 0, shard);
  if constexpr (Seekable<Source>) {
    check_prediction_source(source.options(), source.dataset_size());
    const EpochSampler sampler(source.dataset_size(), source.options(), 0, shard);
    for (const std::int64_t number : sampler.batches_of_rank(0)) {
      predictions.add(outputs_of(batches.next()), sampler.indices(number));
    }
  } else {
    for (std::int64_t number = shard.rank; batches.more(); number += shard.ranks) {
      predictions.add(outputs_of(batches.next()), number);
    }
  }
  return predictions;
}

template <class Function, class Model, class Source>
auto predict(Function& function, Model& model, torch::nn::Module* objective, Source& source,
             const Accelerator& accelerator) {
  static_assert(BatchRange<Source>,
                "lockstep: batches are read from a DataLoader or a range with begin() and end()");
  if constexpr (check_prediction<Function, Model, batch_t<Source>>()) {
    Predictions predictions;
    auto& agreement = accelerator.agreement();
    agreement.locally([&] {
      const EvaluationScope scope(model, objective, accelerator.device());
      predictions = predictions_of_rank(function, model, source, accelerator);
    });
    Outputs outputs = std::move(predictions).over_ranks(agreement);
    using Result = std::remove_cvref_t<std::invoke_result_t<Function&, Model&, const batch_t<Source>&>>;
    if constexpr (std::same_as<Result, Outputs>) {
      return outputs;
    } else {
      return outputs.begin()->second;
    }
  }
}

}  // namespace detail

/// The outputs for every sample of `source`, each once: what `function` returns for its batches, one behind
/// the other in the order of the samples, on the CPU and on every rank. For programs without a Trainer; with
/// one, Trainer::predict().
///
/// Runs in eval mode, without gradients, under the accelerator's autocast; leaves modes and generators as
/// they were. All ranks have the same source and share it as they do in an Evaluator. Row i of a DataLoader's
/// predictions is sample i of its data set, shuffled or not; a range's are in the order of its batches. Every
/// rank calls it, and has memory for all of it. Waits for the device at each batch. Errors: StepError
/// `prediction-rows`, `predictions-differ`, `undefined-prediction`; DataError `nothing-to-predict`;
/// ConfigError `invalid-settings`.
template <class Model, class Source, class Function>
[[nodiscard]] auto predict(const Accelerator& accelerator, Model& model, Source&& source, Function function) {
  return detail::predict(function, model, nullptr, source, accelerator);
}

}  // namespace lockstep
