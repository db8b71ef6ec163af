#include "lockstep/data/sampler.hpp"

#include <algorithm>
#include <array>
#include <set>

#include "support/catch.hpp"

using lockstep::batches_per_epoch;
using lockstep::EpochSampler;
using lockstep::permutation;

namespace {

using Order = std::vector<std::int64_t>;

Order indices(const EpochSampler& sampler, std::int64_t batch) {
  const auto view = sampler.indices(batch);
  return {view.begin(), view.end()};
}

}  // namespace

// The expected orders come from a separate implementation in Python.
CATCH_TEST_CASE("An order is the same on every platform") {
  CATCH_CHECK(permutation(10, 7, 0) == Order{8, 7, 1, 0, 5, 9, 2, 3, 4, 6});
  CATCH_CHECK(permutation(10, 7, 1) == Order{3, 4, 0, 9, 5, 1, 8, 6, 7, 2});
  CATCH_CHECK(permutation(10, 8, 0) == Order{4, 2, 8, 1, 0, 3, 7, 5, 9, 6});
}

CATCH_TEST_CASE("An order holds every index once") {
  auto order = permutation(1000, 3, 5);
  CATCH_CHECK(!std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (std::int64_t i = 0; i < 1000; ++i) CATCH_REQUIRE(order[static_cast<std::size_t>(i)] == i);
}

CATCH_TEST_CASE("Orders of no and of one sample exist") {
  CATCH_CHECK(permutation(0, 1, 0).empty());
  CATCH_CHECK(permutation(1, 1, 0) == Order{0});
}

CATCH_TEST_CASE("Epochs and seeds have orders of their own") {
  std::set<Order> orders;
  for (std::uint64_t seed = 0; seed < 5; ++seed) {
    for (std::int64_t epoch = 0; epoch < 5; ++epoch) orders.insert(permutation(100, seed, epoch));
  }
  CATCH_CHECK(orders.size() == 25);
}

CATCH_TEST_CASE("Each of the six orders of three samples is equally likely") {
  std::map<Order, int> counts;
  for (std::int64_t epoch = 0; epoch < 6000; ++epoch) ++counts[permutation(3, 1, epoch)];
  CATCH_REQUIRE(counts.size() == 6);
  for (const auto& [order, count] : counts) CATCH_CHECK(std::abs(count - 1000) < 120);
}

CATCH_TEST_CASE("Without shuffling every epoch goes from the first sample to the last") {
  const EpochSampler sampler(5, {.batch_size = 2, .seed = 9}, 3);
  CATCH_CHECK(sampler.batches() == 3);
  CATCH_CHECK(indices(sampler, 0) == Order{0, 1});
  CATCH_CHECK(indices(sampler, 1) == Order{2, 3});
  CATCH_CHECK(indices(sampler, 2) == Order{4});
}

CATCH_TEST_CASE("Shuffled batches are the epoch's order, cut") {
  const EpochSampler sampler(10, {.batch_size = 4, .shuffle = true, .seed = 7}, 1);
  CATCH_CHECK(sampler.batches() == 3);
  CATCH_CHECK(indices(sampler, 0) == Order{3, 4, 0, 9});
  CATCH_CHECK(indices(sampler, 1) == Order{5, 1, 8, 6});
  CATCH_CHECK(indices(sampler, 2) == Order{7, 2});
}

CATCH_TEST_CASE("Dropping the last batch drops one that is not full and none that is") {
  CATCH_CHECK(batches_per_epoch(10, {.batch_size = 4, .drop_last = true}) == 2);
  CATCH_CHECK(batches_per_epoch(8, {.batch_size = 4, .drop_last = true}) == 2);
  CATCH_CHECK(batches_per_epoch(8, {.batch_size = 4}) == 2);
  CATCH_CHECK(batches_per_epoch(3, {.batch_size = 4}) == 1);
  CATCH_CHECK(batches_per_epoch(3, {.batch_size = 4, .drop_last = true}) == 0);
  const EpochSampler sampler(10, {.batch_size = 4, .drop_last = true}, 0);
  CATCH_CHECK(sampler.batches() == 2);
  CATCH_CHECK(indices(sampler, 1) == Order{4, 5, 6, 7});
}

CATCH_TEST_CASE("Sample seeds go with the index, not with the place in the epoch") {
  const EpochSampler sampler(10, {.batch_size = 4, .shuffle = true, .seed = 7}, 0);
  const std::array<std::int64_t, 2> asked{1, 0};
  CATCH_CHECK(sampler.sample_seeds(asked) ==
              std::vector<std::uint64_t>{17770702679626417888u, 11241344834629033336u});
}
