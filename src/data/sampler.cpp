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

std::int64_t batches_per_epoch(std::int64_t dataset_size, const DataLoaderOptions& options) {
  const std::int64_t full = dataset_size / options.batch_size;
  const bool partial = dataset_size % options.batch_size != 0;
  return full + (partial && !options.drop_last ? 1 : 0);
}

EpochSampler::EpochSampler(std::int64_t dataset_size, const DataLoaderOptions& options, std::int64_t epoch)
    : order_(options.shuffle ? permutation(dataset_size, options.seed, epoch) : identity(dataset_size)),
      batch_size_(options.batch_size),
      batches_(batches_per_epoch(dataset_size, options)),
      seed_(options.seed),
      epoch_(epoch) {}

std::span<const std::int64_t> EpochSampler::indices(std::int64_t batch) const {
  assert(batch >= 0 && batch < batches_);
  const auto begin = static_cast<std::size_t>(batch * batch_size_);
  return std::span(order_).subspan(begin,
                                   std::min(static_cast<std::size_t>(batch_size_), order_.size() - begin));
}

std::vector<std::uint64_t> EpochSampler::sample_seeds(std::span<const std::int64_t> indices) const {
  std::vector<std::uint64_t> seeds;
  seeds.reserve(indices.size());
  for (const std::int64_t index : indices) seeds.push_back(mix(seed_, epoch_, index));
  return seeds;
}

}  // namespace lockstep
