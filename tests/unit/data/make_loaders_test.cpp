#include "lockstep/data/make_loaders.hpp"

#include "support/fixtures.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// Samples 0 to count - 1, each a number.
struct Numbers {
  [[nodiscard]] std::size_t size() const { return count; }
  [[nodiscard]] std::int64_t get(std::int64_t index) const { return index; }
  std::size_t count;
};

struct Sum {
  std::int64_t operator()(std::vector<std::int64_t> samples) const {
    std::int64_t sum = 0;
    for (const auto sample : samples) sum += sample;
    return sum;
  }
};

TensorDataset numbers(std::int64_t count) { return TensorDataset(torch::arange(count, torch::kDouble)); }

std::vector<std::int64_t> sizes(auto& loader) {
  std::vector<std::int64_t> sizes;
  for (const auto& batch : loader) sizes.push_back(batch.data.numel());
  return sizes;
}

}  // namespace

CATCH_TEST_CASE("the training loader shuffles, the evaluation loader reads every sample in order") {
  auto [train, validation] = make_loaders(numbers(10), numbers(5), {.batch_size = 4, .seed = 7});
  CATCH_CHECK(train.options() == DataLoaderOptions{.batch_size = 4, .shuffle = true, .seed = 7});
  CATCH_CHECK(validation.options() == DataLoaderOptions{.batch_size = 4, .seed = 7});
  Tape order;
  for (const auto& batch : validation) record(order, batch.data);
  CATCH_CHECK(order == Tape{0, 1, 2, 3, 4});
  order.clear();
  for (const auto& batch : train) record(order, batch.data);
  CATCH_CHECK(order != Tape{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  std::sort(order.begin(), order.end());
  CATCH_CHECK(order == Tape{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

CATCH_TEST_CASE("the evaluation loader has batches of its own size and leaves nothing out") {
  auto [train, validation] = make_loaders(numbers(10), numbers(5),
                                          {.batch_size = 4,
                                           .evaluation_batch_size = 3,
                                           .shuffle = false,
                                           .workers = 1,
                                           .drop_last = true,
                                           .pin_memory = false,
                                           .even_batches = true,
                                           .split_batches = true});
  CATCH_CHECK(sizes(train) == std::vector<std::int64_t>{4, 4});
  CATCH_CHECK(sizes(validation) == std::vector<std::int64_t>{3, 2});
  CATCH_CHECK(
      train.options() ==
      DataLoaderOptions{
          .batch_size = 4, .workers = 1, .drop_last = true, .even_batches = true, .split_batches = true});
  CATCH_CHECK(validation.options() ==
              DataLoaderOptions{.batch_size = 3, .workers = 1, .split_batches = true});
}

CATCH_TEST_CASE("data sets of different types may be shared, and both loaders collate with the functor") {
  const auto shared = std::make_shared<Numbers>(Numbers{4});
  auto [train, validation] = make_loaders(shared, Numbers{3}, {.batch_size = 2, .shuffle = false}, Sum{});
  std::vector<std::int64_t> sums;
  for (const auto sum : train) sums.push_back(sum);
  for (const auto sum : validation) sums.push_back(sum);
  CATCH_CHECK(sums == std::vector<std::int64_t>{0 + 1, 2 + 3, 0 + 1, 2});
  CATCH_CHECK(shared.use_count() == 2);
}
