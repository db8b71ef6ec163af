#include "lockstep/data/batch_source.hpp"

#include <list>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using lockstep::batch_t;
using lockstep::BatchSource;
using lockstep::BatchStream;
using lockstep::DataLoader;
using lockstep::EpochBatches;
using lockstep::Example;
using lockstep::Shard;
using lockstep::source_facts;

namespace {

/// Counts up to a limit that it does not tell, in one pass, through one object.
class Counter {
 public:
  explicit Counter(int limit) : limit_(limit) {}

  struct End {};
  class Iterator {
   public:
    explicit Iterator(Counter* counter) : counter_(counter) {}
    int operator*() const { return counter_->value; }
    Iterator& operator++() {
      ++counter_->value;
      return *this;
    }
    bool operator!=(End) const { return counter_->value < counter_->limit_; }

   private:
    Counter* counter_;
  };
  Iterator begin() {
    ++begun;
    value = 0;
    return Iterator(this);
  }
  End end() { return {}; }

  int value = 0;
  int begun = 0;

 private:
  int limit_;
};

DataLoader<lockstep::TensorDataset> numbers(lockstep::DataLoaderOptions options) {
  return DataLoader(lockstep::TensorDataset(torch::arange(10), torch::arange(10)), options);
}

template <class Source>
auto read(Source& source, std::int64_t epoch = 0, std::int64_t first_batch = 0, const Shard& shard = {}) {
  BatchStream stream(source, epoch, first_batch, shard);
  std::vector<typename decltype(stream)::Batch> batches;
  while (stream.more()) batches.push_back(stream.next());
  return batches;
}

template <class Source>
std::string refusal(Source& source, std::int64_t first_batch) {
  return lockstep::test::thrown_id<lockstep::DataError>([&] { (void)read(source, 0, first_batch); });
}

using TorchLoader = std::remove_reference_t<decltype(*torch::data::make_data_loader(
    std::declval<torch::data::datasets::MNIST>().map(torch::data::transforms::Stack<>())))>;

static_assert(std::same_as<batch_t<DataLoader<lockstep::TensorDataset>>, Example>);
static_assert(std::same_as<batch_t<const DataLoader<lockstep::TensorDataset>&>, Example>);
static_assert(std::same_as<batch_t<std::vector<at::Tensor>>, at::Tensor>);
static_assert(std::same_as<batch_t<TorchLoader>, torch::data::Example<>>);
static_assert(std::same_as<batch_t<Counter>, int>);
static_assert(lockstep::BatchRange<Counter>);
static_assert(!lockstep::BatchRange<lockstep::TensorDataset>);

}  // namespace

CATCH_TEST_CASE("A DataLoader is read in the order of the epoch, from the batch asked for") {
  auto loader = numbers({.batch_size = 4, .shuffle = true, .seed = 7});
  const auto whole = read(loader, 1);
  CATCH_REQUIRE(whole.size() == 3);
  CATCH_CHECK(whole[0].data.equal(torch::tensor({3, 4, 0, 9})));
  const auto tail = read(loader, 1, 2);
  CATCH_REQUIRE(tail.size() == 1);
  CATCH_CHECK(tail[0].data.equal(torch::tensor({7, 2})));
  CATCH_CHECK(read(loader, 1, 3).empty());
  CATCH_CHECK(refusal(loader, 4) == "position-past-end");
}

CATCH_TEST_CASE("A vector of batches is indexed") {
  const std::vector<int> batches{5, 6, 7};
  CATCH_CHECK(read(batches, 9) == batches);
  CATCH_CHECK(read(batches, 0, 2) == std::vector<int>{7});
  CATCH_CHECK(read(batches, 0, 3).empty());
  CATCH_CHECK(refusal(batches, 4) == "position-past-end");
}

CATCH_TEST_CASE(
    "A range of unknown length is begun once, and asked for the next batch only when it is needed") {
  Counter counter(3);
  BatchStream stream(counter, 0, 0);
  CATCH_CHECK(stream.more());
  CATCH_CHECK(stream.more());
  CATCH_CHECK(stream.next() == 0);
  CATCH_CHECK(counter.value == 0);
  CATCH_CHECK(stream.more());
  CATCH_CHECK(counter.value == 1);
  CATCH_CHECK(stream.next() == 1);
  CATCH_CHECK(stream.next() == 2);
  CATCH_CHECK(!stream.more());
  CATCH_CHECK(!stream.more());
  CATCH_CHECK(counter.begun == 1);
}

CATCH_TEST_CASE("A range of unknown length is read and dropped up to the batch asked for") {
  Counter counter(5);
  CATCH_CHECK(read(counter, 0, 3) == std::vector<int>{3, 4});
  CATCH_CHECK(read(counter, 0, 5).empty());
  CATCH_CHECK(refusal(counter, 6) == "position-past-end");
  Counter empty(0);
  CATCH_CHECK(read(empty).empty());
}

CATCH_TEST_CASE("A loader of torch::data is read, epoch after epoch") {
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      torch::data::datasets::TensorDataset(torch::arange(10))
          .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
      torch::data::DataLoaderOptions(4));
  for (const std::int64_t epoch : {0, 1}) {
    const auto batches = read(*loader, epoch);
    CATCH_REQUIRE(batches.size() == 3);
    CATCH_CHECK(batches[0].data.equal(torch::tensor({0, 1, 2, 3})));
    CATCH_CHECK(batches[2].data.equal(torch::tensor({8, 9})));
  }
  const auto tail = read(*loader, 0, 2);
  CATCH_REQUIRE(tail.size() == 1);
  CATCH_CHECK(tail[0].data.equal(torch::tensor({8, 9})));
}

CATCH_TEST_CASE("What is known of a source is told, and whether it resumes exactly") {
  const auto of_loader =
      source_facts(numbers({.batch_size = 4, .shuffle = true, .seed = 7, .drop_last = true}));
  CATCH_CHECK(of_loader.batches == 2);
  CATCH_CHECK(of_loader.samples == 10);
  CATCH_CHECK(of_loader.batch_size == 4);
  CATCH_CHECK(of_loader.seed == 7u);
  CATCH_CHECK(of_loader.shuffle == true);
  CATCH_CHECK(of_loader.drop_last == true);
  CATCH_CHECK(of_loader.exact_resume);

  const auto of_vector = source_facts(std::vector<int>{5, 6, 7});
  CATCH_CHECK(of_vector.batches == 3);
  CATCH_CHECK(!of_vector.samples);
  CATCH_CHECK(of_vector.exact_resume);

  const auto of_list = source_facts(std::list<int>{5, 6});
  CATCH_CHECK(of_list.batches == 2);
  CATCH_CHECK(!of_list.exact_resume);

  const auto of_counter = source_facts(Counter(3));
  CATCH_CHECK(!of_counter.batches);
  CATCH_CHECK(!of_counter.exact_resume);
}

CATCH_TEST_CASE("A range is dealt to the ranks in turn, by index or by dropping what others read") {
  const std::vector<int> indexed{0, 1, 2, 3, 4, 5, 6};
  Counter counter(7);
  const auto check = [](auto& source) {
    CATCH_CHECK(read(source, 0, 0, {.rank = 0, .ranks = 3}) == std::vector<int>{0, 3, 6});
    CATCH_CHECK(read(source, 0, 0, {.rank = 1, .ranks = 3}) == std::vector<int>{1, 4});
    CATCH_CHECK(read(source, 0, 0, {.rank = 2, .ranks = 3}) == std::vector<int>{2, 5});
    CATCH_CHECK(read(source, 0, 2, {.rank = 1, .ranks = 2}) == std::vector<int>{3, 5});
    CATCH_CHECK(read(source, 0, 6, {.rank = 0, .ranks = 2}) == std::vector<int>{6});
    CATCH_CHECK(read(source, 0, 6, {.rank = 1, .ranks = 2}).empty());
    CATCH_CHECK(read(source, 0, 7, {.rank = 1, .ranks = 2}).empty());
    CATCH_CHECK(read(source, 0, 0, {.rank = 8, .ranks = 9}).empty());
  };
  check(indexed);
  check(counter);
}

CATCH_TEST_CASE("A rank reads on in a range only when its next batch is needed") {
  Counter counter(7);
  BatchStream stream(counter, 0, 0, {.rank = 1, .ranks = 3});
  CATCH_CHECK(counter.value == 0);
  CATCH_CHECK(stream.next() == 1);
  CATCH_CHECK(counter.value == 1);
  CATCH_CHECK(stream.more());
  CATCH_CHECK(counter.value == 4);
}

CATCH_TEST_CASE("A limit counts the batches of all ranks, also where it is no multiple of their number") {
  const std::vector<int> indexed{0, 1, 2, 3, 4, 5, 6};
  Counter counter(7);
  const auto limited = [](auto& source, std::int64_t first, std::int64_t limit, const Shard& shard) {
    EpochBatches batches(source, 0, first, limit, shard);
    std::vector<int> all;
    while (batches.more()) all.push_back(batches.next());
    return all;
  };
  const auto check = [&](auto& source) {
    CATCH_CHECK(limited(source, 0, 3, {.rank = 0, .ranks = 2}) == std::vector<int>{0, 2});
    CATCH_CHECK(limited(source, 0, 3, {.rank = 1, .ranks = 2}) == std::vector<int>{1});
    CATCH_CHECK(limited(source, 1, 4, {.rank = 0, .ranks = 2}) == std::vector<int>{1, 3});
    CATCH_CHECK(limited(source, 1, 4, {.rank = 1, .ranks = 2}) == std::vector<int>{2});
    CATCH_CHECK(limited(source, 0, 1, {.rank = 1, .ranks = 2}).empty());
    CATCH_CHECK(limited(source, 3, 3, {.rank = 0, .ranks = 2}).empty());
    CATCH_CHECK(limited(source, 4, 3, {.rank = 0, .ranks = 2}).empty());
    CATCH_CHECK(limited(source, 0, 9, {.rank = 1, .ranks = 2}) == std::vector<int>{1, 3, 5});
  };
  check(indexed);
  check(counter);
}

CATCH_TEST_CASE("A limit takes part of every batch where batches are split") {
  auto loader = numbers({.batch_size = 4, .split_batches = true});
  const auto sizes = [&](const Shard& shard, std::int64_t limit) {
    EpochBatches batches(loader, 0, 0, limit, shard);
    std::vector<std::int64_t> all;
    while (batches.more()) all.push_back(batches.next().data.size(0));
    return all;
  };
  CATCH_CHECK(sizes({.rank = 1, .ranks = 2}, 2) == std::vector<std::int64_t>{2, 2});
  CATCH_CHECK(sizes({.rank = 3, .ranks = 4}, 3) == std::vector<std::int64_t>{1, 1});
}

CATCH_TEST_CASE("The facts of a source count the batches of all ranks, and know how many make a round") {
  const auto plain = numbers({.batch_size = 4});
  CATCH_CHECK(source_facts(plain, 2).batches == 3);
  CATCH_CHECK(source_facts(plain, 2).even_batches == false);
  CATCH_CHECK(batches_per_round(source_facts(plain, 2), 2) == 2);
  const auto even = source_facts(numbers({.batch_size = 4, .even_batches = true}), 2);
  CATCH_CHECK(even.batches == 4);
  CATCH_CHECK(even.even_batches == true);
  const auto split = source_facts(numbers({.batch_size = 4, .split_batches = true}), 2);
  CATCH_CHECK(split.batches == 3);
  CATCH_CHECK(split.split_batches == true);
  CATCH_CHECK(batches_per_round(split, 2) == 1);
  const std::vector<int> range{5, 6, 7};
  CATCH_CHECK(source_facts(range, 2).batches == 3);
  CATCH_CHECK(batches_per_round(source_facts(range, 2), 2) == 2);
}

CATCH_TEST_CASE("Evaluation sets are shared exactly, with a share of all ranks' batches as the limit") {
  auto loader = numbers({.batch_size = 4, .even_batches = true});
  const BatchSource<Example> set(loader);
  const auto sizes = [&](std::optional<lockstep::BatchLimit> limit, int rank) {
    std::vector<std::int64_t> all;
    set.for_each(limit, {.rank = rank, .ranks = 2, .pad = false},
                 [&](const Example& batch) { all.push_back(batch.data.size(0)); });
    return all;
  };
  CATCH_CHECK(sizes(std::nullopt, 0) == std::vector<std::int64_t>{4, 2});
  CATCH_CHECK(sizes(std::nullopt, 1) == std::vector<std::int64_t>{4});
  CATCH_CHECK(sizes(0.4, 0) == std::vector<std::int64_t>{4});
  CATCH_CHECK(sizes(0.4, 1).empty());
  CATCH_CHECK(set.size({.ranks = 2, .pad = false}) == 3);
  CATCH_CHECK(set.size({.ranks = 2}) == 4);
  Counter counter(3);
  CATCH_CHECK(!BatchSource<int>(counter).size({}));
}

CATCH_TEST_CASE(
    "Evaluation sets of different kinds sit in one map, are not copied, and are read from the start") {
  auto loader = numbers({.batch_size = 4});
  std::vector<Example> batches{{torch::ones(2), torch::ones(2)}};
  const std::map<std::string, BatchSource<Example>> sets{{"validation", loader}, {"test", batches}};
  batches.push_back({torch::ones(3), torch::ones(3)});
  for (int pass = 0; pass < 2; ++pass) {
    std::vector<std::int64_t> sizes;
    for (const auto& [name, set] : sets) {
      set.for_each(std::nullopt, {}, [&](const Example& batch) { sizes.push_back(batch.data.size(0)); });
    }
    CATCH_CHECK(sizes == std::vector<std::int64_t>{2, 3, 4, 4, 2});
  }
}

CATCH_TEST_CASE("One evaluation set alone makes a map, and an error of its use passes through") {
  auto loader = numbers({.batch_size = 4, .workers = 2});
  const std::map<std::string, BatchSource<Example>> sets{{"validation", loader}};
  CATCH_REQUIRE(sets.size() == 1);
  const auto fail = [](const Example&) { throw std::domain_error("no"); };
  CATCH_CHECK_THROWS_AS(sets.at("validation").for_each(std::nullopt, {}, fail), std::domain_error);
}
