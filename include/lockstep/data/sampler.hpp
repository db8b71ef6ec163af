// The order in which an epoch reads its samples.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/config/data_loader_options.hpp"
#include "lockstep/data/shard.hpp"

namespace lockstep {

/// The numbers 0 to size - 1 in an order that depends on seed and epoch alone, each order equally likely
/// (Fisher and Yates' shuffle in Durstenfeld's form over SampleRandom).
[[nodiscard]] std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed,
                                                    std::int64_t epoch);

/// Batches in one pass of all ranks over `dataset_size` samples.
[[nodiscard]] std::int64_t batches_per_epoch(std::int64_t dataset_size, const DataLoaderOptions& options,
                                             const Shard& shard = {});

/// The order of one epoch, cut into batches. Any batch is found at once, so a position is a number.
class EpochSampler {
 public:
  EpochSampler(std::int64_t dataset_size, const DataLoaderOptions& options, std::int64_t epoch,
               const Shard& shard = {});

  /// Of all ranks.
  [[nodiscard]] std::int64_t batches() const { return batches_; }
  /// Which of them the rank reads when all ranks go on at `first_batch`.
  [[nodiscard]] std::vector<std::int64_t> batches_of_rank(std::int64_t first_batch) const;
  /// The indices of the samples in `batch`, with split_batches of those in the rank's part of it; valid as
  /// long as the sampler. 0 <= batch < batches().
  [[nodiscard]] std::span<const std::int64_t> indices(std::int64_t batch) const;
  /// What the data set gets to draw random numbers from, one for each index.
  [[nodiscard]] std::vector<std::uint64_t> sample_seeds(std::span<const std::int64_t> indices) const;

 private:
  std::vector<std::int64_t> order_;
  DataLoaderOptions options_;
  Shard shard_;
  std::int64_t batches_;
  std::int64_t epoch_;
};

}  // namespace lockstep
