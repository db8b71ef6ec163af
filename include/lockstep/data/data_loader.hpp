// Batches of a data set, epoch by epoch: deterministic, seekable, and loaded ahead by threads if asked.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/messages.hpp"
#include "lockstep/data/batch_buffers.hpp"
#include "lockstep/data/collate.hpp"
#include "lockstep/data/dataset.hpp"
#include "lockstep/data/prefetcher.hpp"
#include "lockstep/data/sampler.hpp"

namespace lockstep {

namespace detail {

/// What a batch is loaded under. Gradients and autocast are the calling thread's own and change the bits of
/// what a data set computes; so the consumer and the worker threads load alike.
class LoadScope {
 public:
  explicit LoadScope(BatchBuffers& buffers) : buffers_(buffers) {}

 private:
  BufferScope buffers_;
  at::NoGradGuard no_grad_;
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

template <class DatasetT, class Collate, class Get>
auto collate_each(const Collate& collate, std::span<const std::int64_t> indices, Get get) {
  using Sample = std::remove_cvref_t<decltype(get(std::size_t{0}))>;
  if constexpr (std::is_invocable_v<const Collate&, std::vector<Sample>>) {
    std::vector<Sample> samples;
    samples.reserve(indices.size());
    for (std::size_t i = 0; i < indices.size(); ++i) samples.push_back(get(i));
    return collate(std::move(samples));
  } else {
    static_assert(
        sizeof(DatasetT) == 0,
        "lockstep: a collate functor is called as collate(std::vector<Sample>), const and from several "
        "threads, with what get() of the data set returns");
    return NoBatch{};
  }
}

template <class T>
struct IsVector : std::false_type {};
template <class Element>
struct IsVector<std::vector<Element>> : std::true_type {};

template <class DatasetT, class Collate>
auto load_batch(DatasetT& dataset, const Collate& collate, const EpochSampler& sampler, BatchBuffers& buffers,
                std::int64_t batch) {
  const auto indices = sampler.indices(batch);
  constexpr bool own_batches = !SeededSamples<DatasetT> && Batches<DatasetT>;
  static_assert(
      !(SeededBatches<DatasetT> || own_batches) || std::is_same_v<Collate, DefaultCollate>,
      "lockstep: this data set makes its own batches in get_batch, so a collate functor would be ignored");
  [[maybe_unused]] const LoadScope scope(buffers);
  if constexpr (SeededBatches<DatasetT>) {
    const auto seeds = sampler.sample_seeds(indices);
    return dataset.get_batch(indices, std::span<const std::uint64_t>(seeds));
  } else if constexpr (SeededSamples<DatasetT>) {
    const auto seeds = sampler.sample_seeds(indices);
    return collate_each<DatasetT>(collate, indices,
                                  [&](std::size_t i) { return dataset.get(indices[i], seeds[i]); });
  } else if constexpr (Batches<DatasetT>) {
    return dataset.get_batch(indices);
  } else if constexpr (Samples<DatasetT>) {
    return collate_each<DatasetT>(collate, indices, [&](std::size_t i) { return dataset.get(indices[i]); });
  } else if constexpr (TorchBatches<DatasetT>) {
    auto samples = dataset.get_batch(std::vector<std::size_t>(indices.begin(), indices.end()));
    if constexpr (IsVector<decltype(samples)>::value) {
      return collate_each<DatasetT>(collate, indices, [&](std::size_t i) { return std::move(samples[i]); });
    } else {
      return samples;
    }
  } else {
    return NoBatch{};
  }
}

/// Errors: ConfigError `invalid-settings`.
void check_dataset_pointer(const void* dataset);

/// Errors: ConfigError `invalid-settings`, DataError `dataset-without-size`, `empty-dataset`.
void check_data_loader(const DataLoaderOptions& options, std::optional<std::size_t> dataset_size);

/// Errors: ConfigError `invalid-settings`.
void check_shard(const DataLoaderOptions& options, const Shard& shard, std::int64_t dataset_size);

/// Errors: DataError `position-past-end`.
void check_first_batch(std::int64_t first_batch, std::int64_t batches);

}  // namespace detail

/// One pass over an epoch, from the batch it was opened at. Movable.
///
/// Holds the data set, so it may outlive its loader. Worker threads, if any, start with it and end with it;
/// it may be left at any batch. For one consumer.
template <class Batch>
class EpochStream {
 public:
  /// Of the batches load(0) to load(count - 1).
  EpochStream(std::function<Batch(std::int64_t)> load, std::int64_t count, int workers) : end_(count) {
    const auto threads = NoWorkersScope::active() ? 0 : static_cast<int>(std::min<std::int64_t>(workers, count));
    if (threads > 0) {
      prefetcher_ = std::make_unique<Prefetcher<Batch>>(std::move(load), 0, count, threads);
    } else {
      load_ = std::move(load);
    }
  }

  [[nodiscard]] bool more() const { return next_ < end_; }

  /// The next batch, or nothing at the end. What the data set or the collate functor threw for a batch is
  /// thrown when that batch is asked for; asked again, the stream goes on behind it.
  [[nodiscard]] std::optional<Batch> next() {
    if (!more()) return std::nullopt;
    const std::int64_t batch = next_++;
    return prefetcher_ ? prefetcher_->next() : load_(batch);
  }

 private:
  std::int64_t next_ = 0;
  std::int64_t end_;
  std::function<Batch(std::int64_t)> load_;
  std::unique_ptr<Prefetcher<Batch>> prefetcher_;
};

/// Cuts a data set into batches.
///
///     lockstep::DataLoader loader(dataset, {.batch_size = 128, .shuffle = true, .seed = 7, .workers = 2});
///     for (auto& batch : loader) { ... }                       // epoch 0
///
/// Takes the data set by value or shares it through a std::shared_ptr; streams share it too. With workers,
/// the data set and the collate functor are called from several threads at once, on one object; they are
/// always called outside autograd and autocast. No thread exists before a stream is opened. The batches of an
/// epoch depend on data set, seed, epoch and batch size, never on `workers` or on where the stream was
/// opened. Several ranks share an epoch: each gives epoch() its Shard. Errors: ConfigError
/// `invalid-settings`, DataError `empty-dataset`, `dataset-without-size`.
template <class DatasetT, class Collate = DefaultCollate>
class DataLoader {
  static_assert(
      Dataset<DatasetT>,
      "lockstep: a data set has size() and one of get(index), get(index, sample_seed), get_batch(indices), "
      "get_batch(indices, sample_seeds), where indices are std::span<const std::int64_t> and seeds "
      "std::span<const std::uint64_t>");

 public:
  using Batch = decltype(detail::load_batch(std::declval<DatasetT&>(), std::declval<const Collate&>(),
                                            std::declval<const EpochSampler&>(),
                                            std::declval<detail::BatchBuffers&>(), std::int64_t{0}));
  using Stream = EpochStream<Batch>;

  explicit DataLoader(DatasetT dataset, DataLoaderOptions options = {}, Collate collate = {})
      : DataLoader(std::make_shared<DatasetT>(std::move(dataset)), options, std::move(collate)) {}

  explicit DataLoader(std::shared_ptr<DatasetT> dataset, DataLoaderOptions options = {}, Collate collate = {})
      : dataset_(std::move(dataset)), options_(options), collate_(std::move(collate)) {
    detail::check_dataset_pointer(dataset_.get());
    const std::optional<std::size_t> size = dataset_->size();
    detail::check_data_loader(options_, size);
    dataset_size_ = static_cast<std::int64_t>(*size);
  }

  /// Batches in an epoch of all ranks. Errors: ConfigError `invalid-settings` when the ranks cannot share it
  /// as the options say.
  [[nodiscard]] std::int64_t size(const Shard& shard = {}) const {
    detail::check_shard(options_, shard, dataset_size_);
    return batches_per_epoch(dataset_size_, options_, shard);
  }
  [[nodiscard]] std::int64_t dataset_size() const { return dataset_size_; }
  [[nodiscard]] const DataLoaderOptions& options() const { return options_; }

  /// The rank's batches of `epoch` from the `first_batch`-th of all ranks on; no others are loaded. Errors:
  /// DataError `position-past-end`, and those of size().
  [[nodiscard]] Stream epoch(std::int64_t epoch, std::int64_t first_batch = 0,
                             const Shard& shard = {}) const {
    detail::check_first_batch(first_batch, size(shard));
    EpochSampler sampler(dataset_size_, options_, epoch, shard);
    auto batches = sampler.batches_of_rank(first_batch);
    const auto count = static_cast<std::int64_t>(batches.size());
    return Stream(
        [dataset = dataset_, collate = collate_, sampler = std::move(sampler), batches = std::move(batches),
         buffers = std::make_shared<detail::BatchBuffers>(options_.pin_memory)](std::int64_t i) -> Batch {
          const std::int64_t batch = batches[static_cast<std::size_t>(i)];
          return detail::load_batch(*dataset, collate, sampler, *buffers, batch);
        },
        count, options_.workers);
  }

  /// A single pass over epoch 0.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(Stream stream) : stream_(std::move(stream)) { ++*this; }
    [[nodiscard]] Batch& operator*() const { return *batch_; }
    Iterator& operator++() {
      batch_ = stream_.next();
      return *this;
    }
    void operator++(int) { ++*this; }
    [[nodiscard]] bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    Stream stream_;
    mutable std::optional<Batch> batch_;
  };

  [[nodiscard]] Iterator begin() const { return Iterator(epoch(0)); }
  [[nodiscard]] std::default_sentinel_t end() const { return {}; }

 private:
  std::shared_ptr<DatasetT> dataset_;
  DataLoaderOptions options_;
  Collate collate_;
  std::int64_t dataset_size_ = 0;
};

}  // namespace lockstep
