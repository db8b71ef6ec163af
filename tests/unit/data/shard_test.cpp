#include "lockstep/data/shard.hpp"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.hpp"
#include "lockstep/data/sampler.hpp"
#include "support/catch.hpp"

using lockstep::batches_per_epoch;
using lockstep::DataLoaderOptions;
using lockstep::dealt_batches;
using lockstep::EpochSampler;
using lockstep::Shard;

namespace {

using Batch = std::vector<std::int64_t>;
using Batches = std::vector<Batch>;

/// What the rank reads from `first_batch` on.
Batches read(std::int64_t samples, const DataLoaderOptions& options, const Shard& shard,
             std::int64_t first_batch = 0) {
  const EpochSampler sampler(samples, options, 1, shard);
  Batches batches;
  for (const std::int64_t number : sampler.batches_of_rank(first_batch)) {
    const auto indices = sampler.indices(number);
    batches.emplace_back(indices.begin(), indices.end());
  }
  return batches;
}

std::vector<Batches> read_by_all(std::int64_t samples, const DataLoaderOptions& options, int ranks, bool pad,
                                 std::int64_t first_batch = 0) {
  std::vector<Batches> shares;
  for (int rank = 0; rank < ranks; ++rank) {
    shares.push_back(read(samples, options, {rank, ranks, pad}, first_batch));
  }
  return shares;
}

/// The order in which one rank would read, from the permutation that sampler_test compares with Python's.
Batch order_of(std::int64_t samples, const DataLoaderOptions& options) {
  if (options.shuffle) return lockstep::permutation(samples, options.seed, 1);
  Batch order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Batches cut(const Batch& order, std::int64_t batch_size) {
  Batches batches;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i % static_cast<std::size_t>(batch_size) == 0) batches.emplace_back();
    batches.back().push_back(order[i]);
  }
  return batches;
}

/// One batch of rank 0, one of rank 1, ..., and so on until none has any left.
Batches in_turn(const std::vector<Batches>& shares) {
  Batches all;
  for (std::size_t round = 0;; ++round) {
    const std::size_t before = all.size();
    for (const Batches& share : shares) {
      if (round < share.size()) all.push_back(share[round]);
    }
    if (all.size() == before) return all;
  }
}

/// Batch by batch, what all ranks have of it, rank 0's part first.
Batches joined(const std::vector<Batches>& shares) {
  Batches all(shares[0].size());
  for (const Batches& share : shares) {
    for (std::size_t i = 0; i < share.size(); ++i) {
      CATCH_REQUIRE(i < all.size());
      all[i].insert(all[i].end(), share[i].begin(), share[i].end());
    }
  }
  return all;
}

/// Calls `check(samples, options, ranks)` for sizes 0 to 13, batches of 1 to 4 a rank and 1 to 4 ranks.
void for_all_cases(DataLoaderOptions options, auto check) {
  for (const bool shuffle : {false, true}) {
    for (std::int64_t samples = 0; samples <= 13; ++samples) {
      for (std::int64_t batch_size = 1; batch_size <= 4; ++batch_size) {
        for (int ranks = 1; ranks <= 4; ++ranks) {
          options.shuffle = shuffle;
          options.batch_size = options.split_batches ? batch_size * ranks : batch_size;
          CATCH_CAPTURE(shuffle, samples, options.batch_size, ranks);
          check(samples, options, ranks);
        }
      }
    }
  }
}

}  // namespace

CATCH_TEST_CASE("Batches go to the ranks in turn") {
  const DataLoaderOptions pairs{.batch_size = 2};
  CATCH_CHECK(read_by_all(7, pairs, 2, true) ==
              std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6}}});
  CATCH_CHECK(read_by_all(7, pairs, 3, true) ==
              std::vector<Batches>{{{0, 1}, {6}}, {{2, 3}}, {{4, 5}}});
  CATCH_CHECK(read_by_all(3, pairs, 4, true) == std::vector<Batches>{{{0, 1}}, {{2}}, {}, {}});
  CATCH_CHECK(read_by_all(7, {.batch_size = 2, .drop_last = true}, 2, true) ==
              std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}}});
  CATCH_CHECK(read_by_all(9, pairs, 2, true, 1) ==
              std::vector<Batches>{{{2, 3}, {6, 7}}, {{4, 5}, {8}}});
}

CATCH_TEST_CASE("Even batches go on with the first samples, or leave the last out where that is asked") {
  const DataLoaderOptions even{.batch_size = 2, .even_batches = true};
  CATCH_CHECK(read_by_all(7, even, 2, true) == std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6, 0}}});
  CATCH_CHECK(read_by_all(5, even, 2, true) == std::vector<Batches>{{{0, 1}, {4, 0}}, {{2, 3}, {1, 2}}});
  CATCH_CHECK(read_by_all(7, even, 1, true) == std::vector<Batches>{{{0, 1}, {2, 3}, {4, 5}, {6, 0}}});
  CATCH_CHECK(read_by_all(1, even, 3, true) == std::vector<Batches>{{{0, 0}}, {{0, 0}}, {{0, 0}}});
  CATCH_CHECK(read_by_all(7, even, 2, false) == std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6}}});
  const DataLoaderOptions even_dropped{.batch_size = 2, .drop_last = true, .even_batches = true};
  CATCH_CHECK(read_by_all(7, even_dropped, 2, true) == std::vector<Batches>{{{0, 1}}, {{2, 3}}});
  CATCH_CHECK(read_by_all(8, even_dropped, 2, true) ==
              std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}});
  CATCH_CHECK(read_by_all(7, even_dropped, 2, false) ==
              std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}}});
}

CATCH_TEST_CASE("Split batches give every rank its part of each batch") {
  const DataLoaderOptions split{.batch_size = 4, .split_batches = true};
  CATCH_CHECK(read_by_all(8, split, 2, true) == std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}});
  CATCH_CHECK(read_by_all(7, split, 2, true) == std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6}}});
  CATCH_CHECK(read_by_all(5, split, 2, true) == std::vector<Batches>{{{0, 1}, {4}}, {{2, 3}}});
  CATCH_CHECK(read_by_all(6, split, 4, true) == std::vector<Batches>{{{0}, {4}}, {{1}, {5}}, {{2}}, {{3}}});
  CATCH_CHECK(read_by_all(7, {.batch_size = 4, .drop_last = true, .split_batches = true}, 2, true) ==
              std::vector<Batches>{{{0, 1}}, {{2, 3}}});
  CATCH_CHECK(read_by_all(7, {.batch_size = 4, .even_batches = true, .split_batches = true}, 2, true) ==
              std::vector<Batches>{{{0, 1}, {4, 5}}, {{2, 3}, {6, 0}}});
  CATCH_CHECK(read_by_all(12, split, 2, true, 1) ==
              std::vector<Batches>{{{4, 5}, {8, 9}}, {{6, 7}, {10, 11}}});
}

CATCH_TEST_CASE("Exact shards hold every sample once, in the order of one rank, from wherever they begin") {
  const auto check = [](std::int64_t samples, const DataLoaderOptions& options, int ranks) {
    const auto whole = cut(order_of(samples, options), options.batch_size);
    CATCH_REQUIRE(batches_per_epoch(samples, options, {.ranks = ranks}) ==
                  static_cast<std::int64_t>(whole.size()));
    for (std::size_t first = 0; first <= whole.size(); ++first) {
      const auto shares = read_by_all(samples, options, ranks, true, static_cast<std::int64_t>(first));
      const auto read = options.split_batches ? joined(shares) : in_turn(shares);
      CATCH_REQUIRE(read == Batches(whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end()));
      for (const auto& share : shares) {
        CATCH_REQUIRE(std::none_of(share.begin(), share.end(), [](auto& batch) { return batch.empty(); }));
        CATCH_REQUIRE(shares[0].size() - share.size() <= 1);
      }
    }
  };
  for_all_cases({.seed = 7}, check);
  for_all_cases({.seed = 7, .split_batches = true}, check);
}

CATCH_TEST_CASE("Parts of a split batch differ by one sample at most") {
  const auto check = [](std::int64_t samples, const DataLoaderOptions& options, int ranks) {
    const std::int64_t batches = batches_per_epoch(samples, options);
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      const auto part = [&](int rank) {
        return EpochSampler(samples, options, 1, {.rank = rank, .ranks = ranks}).indices(batch).size();
      };
      for (int rank = 1; rank < ranks; ++rank) CATCH_REQUIRE(part(rank - 1) - part(rank) <= 1);
      CATCH_REQUIRE(part(0) - part(ranks - 1) <= 1);
    }
  };
  for_all_cases({.split_batches = true}, check);
}

CATCH_TEST_CASE("Even shards are full batches, equally many on all ranks, of the order and its beginning") {
  const auto check = [](std::int64_t samples, const DataLoaderOptions& options, int ranks) {
    const std::int64_t round = options.split_batches ? options.batch_size : options.batch_size * ranks;
    const std::int64_t rounds = options.drop_last ? samples / round : (samples + round - 1) / round;
    auto order = order_of(samples, options);
    for (std::int64_t i = 0; i < rounds * round - samples; ++i) {
      order.push_back(order[static_cast<std::size_t>(i % samples)]);
    }
    order.resize(static_cast<std::size_t>(rounds * round));
    const auto shares = read_by_all(samples, options, ranks, true);
    for (const auto& share : shares) {
      CATCH_REQUIRE(share.size() == static_cast<std::size_t>(rounds));
      for (const auto& batch : share) CATCH_REQUIRE(static_cast<std::int64_t>(batch.size()) == round / ranks);
    }
    const auto read = options.split_batches ? joined(shares) : in_turn(shares);
    CATCH_REQUIRE(read == cut(order, options.batch_size));
    const auto exact = read_by_all(samples, options, ranks, false);
    auto without = options;
    without.even_batches = false;
    CATCH_REQUIRE(exact == read_by_all(samples, without, ranks, true));
  };
  for (const bool drop_last : {false, true}) {
    for_all_cases({.seed = 7, .drop_last = drop_last, .even_batches = true}, check);
    for_all_cases({.seed = 7, .drop_last = drop_last, .even_batches = true, .split_batches = true}, check);
  }
}

CATCH_TEST_CASE("Of batches dealt in turn the first ranks have one more than the others") {
  for (std::int64_t batches = 0; batches <= 13; ++batches) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t dealt = 0;
        for (std::int64_t batch = 0; batch < batches; ++batch) dealt += batch % ranks == rank ? 1 : 0;
        CATCH_REQUIRE(dealt_batches(batches, {.rank = rank, .ranks = ranks}) == dealt);
      }
    }
  }
}

CATCH_TEST_CASE("A sample's seed does not depend on the rank that reads it") {
  const DataLoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 7};
  const std::vector<std::int64_t> asked{1, 0};
  const EpochSampler sampler(10, options, 0, {.rank = 2, .ranks = 3});
  CATCH_CHECK(sampler.sample_seeds(asked) ==
              std::vector<std::uint64_t>{17770702679626417888u, 11241344834629033336u});
}
