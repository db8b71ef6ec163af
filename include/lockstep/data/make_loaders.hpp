// The loaders of a training set and an evaluation set, with the defaults that nearly all runs want.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "lockstep/data/data_loader.hpp"

namespace lockstep {

/// As DataLoaderOptions, for both loaders where nothing else is said.
struct LoadersOptions {
  std::int64_t batch_size = 1;
  std::optional<std::int64_t> evaluation_batch_size = {};  ///< unset: batch_size
  bool shuffle = true;                                     ///< the training set, in a new order every epoch
  std::uint64_t seed = 0;
  int workers = 0;
  bool drop_last = false;  ///< of training alone: an evaluation uses every sample
  bool pin_memory = false;
  bool even_batches = false;  ///< of training alone: an evaluation counts each sample once
  bool split_batches = false;
};

namespace detail {

template <class DatasetT, class Collate>
using LoaderOf = decltype(DataLoader(std::declval<DatasetT>(), DataLoaderOptions(), std::declval<Collate>()));

}  // namespace detail

template <class TrainSet, class EvaluationSet, class Collate = DefaultCollate>
struct Loaders {
  detail::LoaderOf<TrainSet, Collate> training;
  detail::LoaderOf<EvaluationSet, Collate> evaluation;
};

/// A loader for training and one for evaluation. Data sets are taken by value or shared, as by a DataLoader;
/// both loaders use `collate`. Errors: those of DataLoader.
///
///     auto [train_loader, validation_loader] = lockstep::make_loaders(
///         train_set, validation_set, {.batch_size = 64, .evaluation_batch_size = 512, .seed = 7});
template <class TrainSet, class EvaluationSet, class Collate = DefaultCollate>
[[nodiscard]] Loaders<TrainSet, EvaluationSet, Collate> make_loaders(TrainSet train_set,
                                                                     EvaluationSet evaluation_set,
                                                                     const LoadersOptions& options,
                                                                     Collate collate = {}) {
  const DataLoaderOptions training{.batch_size = options.batch_size,
                                   .shuffle = options.shuffle,
                                   .seed = options.seed,
                                   .workers = options.workers,
                                   .drop_last = options.drop_last,
                                   .pin_memory = options.pin_memory,
                                   .even_batches = options.even_batches,
                                   .split_batches = options.split_batches};
  DataLoaderOptions evaluation = training;
  evaluation.batch_size = options.evaluation_batch_size.value_or(options.batch_size);
  evaluation.shuffle = evaluation.drop_last = evaluation.even_batches = false;
  return {
      .training = detail::LoaderOf<TrainSet, Collate>(std::move(train_set), training, collate),
      .evaluation = detail::LoaderOf<EvaluationSet, Collate>(std::move(evaluation_set), evaluation, collate)};
}

}  // namespace lockstep
