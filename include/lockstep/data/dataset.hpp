// What a map-style data set is, and the one that holds its samples in two tensors.
//
// A sample is a function of (data set, index, sample seed): a data set draws random numbers from nothing but
// the sample seed it is handed (see base/random.hpp), which depends on the loader's seed, the epoch and the
// index. Then no number of worker threads changes a bit and a run can be resumed anywhere. Torch's default
// generator is shared by all threads; whoever draws from it in a data set gives both up.
//
// With `workers > 0` the accessors are called from several threads at once, on one object, so they must not
// write to it without a lock of their own.
#pragma once

#include <c10/util/ArrayRef.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "lockstep/data/example.hpp"

namespace lockstep {

namespace detail {

template <class T>
concept Sized = requires(T& dataset) {
  { dataset.size() } -> std::convertible_to<std::optional<std::size_t>>;
};

template <class T>
concept SeededSamples = requires(T& dataset, std::int64_t index, std::uint64_t sample_seed) {
  dataset.get(index, sample_seed);
};

template <class T>
concept Samples = requires(T& dataset, std::int64_t index) {
  dataset.get(index);
};

template <class T>
concept SeededBatches = requires(T& dataset, std::span<const std::int64_t> indices,
                                 std::span<const std::uint64_t> sample_seeds) {
  dataset.get_batch(indices, sample_seeds);
};

template <class T>
concept Batches = requires(T& dataset, std::span<const std::int64_t> indices) {
  dataset.get_batch(indices);
};

/// torch::data's way to ask for a batch: the only one its mapped data sets have.
template <class T>
concept TorchBatches = requires(T& dataset, c10::ArrayRef<std::size_t> indices) {
  dataset.get_batch(indices);
};

}  // namespace detail

/// A finite set of samples with numbers from 0 to size() - 1.
///
/// `size()` returns an integer, or std::optional<size_t> as in torch::data. One accessor is needed; of
/// several, the first of this list is used:
///
///     Batch  get_batch(std::span<const std::int64_t> indices, std::span<const std::uint64_t> sample_seeds)
///     Sample get(index, std::uint64_t sample_seed)
///     Batch  get_batch(std::span<const std::int64_t> indices)
///     Sample get(index)
///     get_batch(c10::ArrayRef<size_t>) of torch::data: a std::vector of samples, or a batch
///
/// A batch goes to the Step as it is; start its tensors in buffers of their own, as every new tensor does,
/// since the alignment of a view changes the last bits of matrix products. Samples are collated (see
/// data/collate.hpp).
///
///     struct Crops {                                            // valid
///       std::int64_t size() const;
///       lockstep::Example get(std::int64_t index, std::uint64_t sample_seed) const;
///     };
///     static_assert(lockstep::Dataset<Crops>);
///     static_assert(lockstep::Dataset<torch::data::datasets::MNIST>);
///
///     struct Stream { std::optional<lockstep::Example> next(); };               // invalid: no size, no
///     index static_assert(!lockstep::Dataset<Stream>);
///     static_assert(!lockstep::Dataset<std::vector<lockstep::Example>>);        // invalid: no get
template <class T>
concept Dataset = detail::Sized<T> &&(detail::SeededBatches<T> || detail::SeededSamples<T> ||
                                      detail::Batches<T> || detail::Samples<T> || detail::TorchBatches<T>);

/// Samples held in memory: row i of `data` and of `target`.
///
/// Batches are gathered into buffers of their own on the device of the tensors, never views; within a
/// DataLoader, into those that no batch is held in any more. Shares the tensors it is given. Errors: DataError
/// `rows-differ`.
class TensorDataset {
 public:
  /// data [N, ...], target [N, ...] or left out.
  explicit TensorDataset(at::Tensor data, at::Tensor target = {});

  [[nodiscard]] std::int64_t size() const { return data_.size(0); }
  /// data [indices, ...], target [indices, ...].
  [[nodiscard]] Example get_batch(std::span<const std::int64_t> indices) const;

 private:
  at::Tensor data_;
  at::Tensor target_;
};

}  // namespace lockstep
