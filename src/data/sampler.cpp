#include "lockstep/data/sampler.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>
#include <utility>

#include "lockstep/base/random.hpp"

namespace lockstep {

namespace {

// No sample has this number, so the order and the samples never share a stream of random numbers.
constexpr std::int64_t kOrderIndex = -1;

std::vector<std::int64_t> identity(std::int64_t size) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace

std::vector<std::int64_t> permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  auto order = identity(size);
  SampleRandom random(mix(seed, epoch, kOrderIndex));
  for (std::int64_t last = size - 1; last > 0; --last) {
    std::swap(order[static_cast<std::size_t>(last)],
              order[static_cast<std::size_t>(random.uniform_int(0, last + 1))]);
  }
  return order;
}

std::int64_t batches_per_epoch(std::int64_t dataset_size, const DataLoaderOptions& options,
                               const Shard& shard) {
  const auto pieces = [&](std::int64_t total, std::int64_t size) {
    return total / size + (total % size != 0 && !options.drop_last ? 1 : 0);
  };
  const std::int64_t batches = pieces(dataset_size, options.batch_size);
  const bool whole_rounds = options.even_batches && shard.pad && !options.split_batches;
  return whole_rounds ? pieces(batches, shard.ranks) * shard.ranks : batches;
}

EpochSampler::EpochSampler(std::int64_t dataset_size, const DataLoaderOptions& options, std::int64_t epoch,
                           const Shard& shard)
    : order_(options.shuffle ? permutation(dataset_size, options.seed, epoch) : identity(dataset_size)),
      options_(options),
      shard_(shard),
      batches_(batches_per_epoch(dataset_size, options, shard)),
      epoch_(epoch) {
  if (!options.even_batches || !shard.pad) return;
  const auto samples = static_cast<std::size_t>(batches_ * options.batch_size);
  for (std::size_t i = 0; order_.size() < samples; ++i) order_.push_back(std::int64_t{order_[i]});
}

std::vector<std::int64_t> EpochSampler::batches_of_rank(std::int64_t first_batch) const {
  std::vector<std::int64_t> batches;
  const std::int64_t first = first_batch + (options_.split_batches ? 0 : shard_.rank);
  const std::int64_t stride = options_.split_batches ? 1 : shard_.ranks;
  for (std::int64_t batch = first; batch < batches_; batch += stride) {
    if (!indices(batch).empty()) batches.push_back(batch);
  }
  return batches;
}

std::span<const std::int64_t> EpochSampler::indices(std::int64_t batch) const {
  assert(batch >= 0 && batch < batches_);
  const std::int64_t begin = batch * options_.batch_size;
  const auto samples = std::min(options_.batch_size, static_cast<std::int64_t>(order_.size()) - begin);
  // The first ranks take one more of what does not divide.
  const auto start = [&](std::int64_t rank) {
    return rank * (samples / shard_.ranks) + std::min(rank, samples % shard_.ranks);
  };
  const bool split = options_.split_batches;
  const std::int64_t from = split ? start(shard_.rank) : 0;
  const std::int64_t to = split ? start(shard_.rank + 1) : samples;
  return std::span(order_).subspan(static_cast<std::size_t>(begin + from),
                                   static_cast<std::size_t>(to - from));
}

std::vector<std::uint64_t> EpochSampler::sample_seeds(std::span<const std::int64_t> indices) const {
  std::vector<std::uint64_t> seeds;
  seeds.reserve(indices.size());
  for (const std::int64_t index : indices) seeds.push_back(mix(options_.seed, epoch_, index));
  return seeds;
}

}  // namespace lockstep
