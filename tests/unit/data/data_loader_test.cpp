#include "lockstep/data/data_loader.hpp"

#include <ATen/autocast_mode.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "lockstep/base/error.hpp"
#include "lockstep/base/random.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using lockstep::DataLoader;
using lockstep::DataLoaderOptions;
using lockstep::Example;
using lockstep::TensorDataset;
using lockstep::test::thrown_id;

namespace {

TensorDataset numbers(std::int64_t size) {
  return TensorDataset(torch::arange(size), torch::arange(size) * 10);
}

std::vector<std::int64_t> values(const at::Tensor& tensor) {
  const auto flat = tensor.to(at::kLong).contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

template <class Stream>
auto rest_of(Stream stream) {
  std::vector<std::decay_t<decltype(*stream.next())>> batches;
  while (auto batch = stream.next()) batches.push_back(*std::move(batch));
  return batches;
}

/// Adds noise to the index, at an uneven pace so that threads overtake each other.
struct NoisySet {
  std::int64_t size() const { return 50; }
  Example get(std::int64_t index, std::uint64_t sample_seed) const {
    lockstep::SampleRandom random(sample_seed);
    std::this_thread::sleep_for(std::chrono::microseconds(random.uniform_int(0, 300)));
    auto noise = torch::empty({3});
    for (int i = 0; i < 3; ++i) noise[i] = random.normal();
    return {noise + index, torch::tensor(index)};
  }
};

/// Fails for one sample.
struct BrokenSet {
  std::int64_t broken = 0;
  std::int64_t size() const { return 40; }
  at::Tensor get(std::int64_t index) const {
    if (index == broken) throw std::out_of_range("sample " + std::to_string(index));
    return torch::tensor(index);
  }
};

std::ptrdiff_t running_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

/// As torch's MNIST: get takes size_t, is not const, and returns torch's Example.
class TorchSet : public torch::data::datasets::Dataset<TorchSet> {
 public:
  torch::data::Example<> get(std::size_t index) override {
    return {torch::full({2}, static_cast<double>(index)), torch::tensor(static_cast<std::int64_t>(index))};
  }
  std::optional<std::size_t> size() const override { return size_; }

  std::optional<std::size_t> size_ = 5;
};

}  // namespace

CATCH_TEST_CASE("An epoch yields each sample once, in batches") {
  const DataLoader loader(numbers(5), {.batch_size = 2});
  CATCH_CHECK(loader.size() == 3);
  CATCH_CHECK(loader.dataset_size() == 5);
  CATCH_CHECK(loader.options().batch_size == 2);
  auto stream = loader.epoch(0);
  CATCH_CHECK(stream.more());
  const auto batches = rest_of(std::move(stream));
  CATCH_REQUIRE(batches.size() == 3);
  CATCH_CHECK(values(batches[1].data) == std::vector<std::int64_t>{2, 3});
  CATCH_CHECK(values(batches[2].target) == std::vector<std::int64_t>{40});
}

CATCH_TEST_CASE("A shuffled epoch follows the order of its seed and epoch") {
  const DataLoader loader(numbers(10), {.batch_size = 4, .shuffle = true, .seed = 7});
  const auto batches = rest_of(loader.epoch(1));
  CATCH_CHECK(values(batches.at(0).data) == std::vector<std::int64_t>{3, 4, 0, 9});
  CATCH_CHECK(values(batches.at(2).data) == std::vector<std::int64_t>{7, 2});
}

CATCH_TEST_CASE("A range-for reads epoch 0") {
  DataLoader loader(numbers(5), {.batch_size = 2, .workers = 1});
  std::int64_t sum = 0;
  int batches = 0;
  for (auto& batch : loader) {
    sum += batch.data.sum().item<std::int64_t>();
    ++batches;
  }
  CATCH_CHECK(batches == 3);
  CATCH_CHECK(sum == 10);
}

CATCH_TEST_CASE("The number of workers changes no bit, augmentation included") {
  const auto epoch = [](int workers, std::int64_t number) {
    return rest_of(DataLoader(NoisySet(), {.batch_size = 4, .shuffle = true, .seed = 3, .workers = workers})
                       .epoch(number));
  };
  const auto expected = epoch(0, 2);
  CATCH_REQUIRE(expected.size() == 13);
  for (const int workers : {1, 3, 20}) {
    const auto batches = epoch(workers, 2);
    CATCH_REQUIRE(batches.size() == expected.size());
    for (std::size_t i = 0; i < batches.size(); ++i) {
      CATCH_CHECK(batches[i].data.equal(expected[i].data));
      CATCH_CHECK(batches[i].target.equal(expected[i].target));
    }
  }
  CATCH_CHECK(!epoch(0, 3)[0].data.equal(expected[0].data));
}

CATCH_TEST_CASE("A rank loads its own samples alone, augmented as one rank would") {
  const DataLoader loader(NoisySet(), {.batch_size = 4, .shuffle = true, .seed = 3});
  const auto whole = rest_of(loader.epoch(2));
  for (const int workers : {0, 2}) {
    const DataLoader sharded(NoisySet(), {.batch_size = 4, .shuffle = true, .seed = 3, .workers = workers});
    const auto own = rest_of(sharded.epoch(2, 3, {.rank = 1, .ranks = 3}));
    CATCH_REQUIRE(own.size() == 3);
    for (std::size_t i = 0; i < own.size(); ++i) CATCH_CHECK(own[i].data.equal(whole[4 + 3 * i].data));
  }
}

CATCH_TEST_CASE("Ranks that cannot share an epoch are refused, with the remedy") {
  const auto refusal = [](DataLoaderOptions options, const lockstep::Shard& shard) -> std::string {
    try {
      (void)DataLoader(numbers(10), options).epoch(0, 0, shard);
    } catch (const lockstep::ConfigError& error) {
      CATCH_CHECK(error.id() == "invalid-settings");
      return error.what();
    }
    return "";
  };
  CATCH_CHECK_THAT(refusal({.batch_size = 4, .split_batches = true}, {.ranks = 3}),
                   Catch::Contains("batch_size 4 into equal parts for 3 ranks"));
  CATCH_CHECK(refusal({.batch_size = 4, .split_batches = true}, {.ranks = 4}) == "");
  CATCH_CHECK_THAT(refusal({.batch_size = 4, .drop_last = true, .even_batches = true}, {.ranks = 3}),
                   Catch::Contains("leave no batch of 10 samples to each of 3 ranks"));
  CATCH_CHECK(refusal({.batch_size = 4, .drop_last = true, .even_batches = true},
                      {.ranks = 3, .pad = false}) == "");
  CATCH_CHECK_THAT(refusal({}, {.rank = 2, .ranks = 2}), Catch::Contains("rank 2 of 2 ranks does not exist"));
}

CATCH_TEST_CASE("A sample's noise follows from loader seed, epoch and index") {
  const DataLoader loader(NoisySet(), {.batch_size = 50, .seed = 7});
  const auto batch = loader.epoch(0).next();
  lockstep::SampleRandom random(17770702679626417888u);  // of index 1
  random.uniform_int(0, 300);
  CATCH_CHECK(batch->data[1][0].item<float>() == static_cast<float>(random.normal()) + 1);
}

CATCH_TEST_CASE("Neither autocast nor gradients of the caller reach what a data set computes") {
  struct Products {
    std::int64_t size() const { return 1; }
    at::Tensor get(std::int64_t) const {
      const auto weight = torch::ones({2, 2}).requires_grad_();
      return weight.mm(weight);
    }
  };
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (const int workers : {0, 1}) {
    const auto batch = DataLoader(Products(), {.workers = workers}).epoch(0).next();
    CATCH_CHECK(batch->scalar_type() == at::kFloat);
    CATCH_CHECK(!batch->requires_grad());
  }
  CATCH_CHECK(torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type() == at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CATCH_CHECK(at::GradMode::is_enabled());
}

CATCH_TEST_CASE("Opening an epoch at a batch equals reading up to it") {
  const DataLoader loader(NoisySet(), {.batch_size = 4, .shuffle = true, .seed = 3, .workers = 2});
  const auto whole = rest_of(loader.epoch(5));
  const auto tail = rest_of(loader.epoch(5, 9));
  CATCH_REQUIRE(tail.size() == whole.size() - 9);
  for (std::size_t i = 0; i < tail.size(); ++i) CATCH_CHECK(tail[i].data.equal(whole[i + 9].data));
  CATCH_CHECK(!loader.epoch(5, 13).more());
  CATCH_CHECK(!loader.epoch(5, 13).next());
}

CATCH_TEST_CASE("A batch that is not in the epoch is refused as the first") {
  const DataLoader loader(numbers(5), {.batch_size = 2});
  const auto id = [&](std::int64_t first) {
    return thrown_id<lockstep::DataError>([&] { (void)loader.epoch(0, first); });
  };
  CATCH_CHECK(id(4) == "position-past-end");
  CATCH_CHECK(id(-1) == "position-past-end");
}

CATCH_TEST_CASE("An error surfaces at its own batch, after the good ones, and the stream goes on behind it") {
  for (const int workers : {0, 1, 3}) {
    const DataLoader loader(BrokenSet{.broken = 13}, {.batch_size = 4, .workers = workers});
    auto stream = loader.epoch(0);
    for (std::int64_t batch = 0; batch < 3; ++batch) {
      CATCH_CHECK(values(stream.next().value())[0] == 4 * batch);
    }
    CATCH_CHECK_THROWS_AS((void)stream.next(), std::out_of_range);
    CATCH_CHECK(values(stream.next().value())[0] == 16);
    CATCH_CHECK(rest_of(std::move(stream)).size() == 5);
  }
}

CATCH_TEST_CASE("A stream may be left at any batch, unread errors included") {
  for (int taken = 0; taken <= 10; ++taken) {
    const DataLoader loader(BrokenSet{.broken = 39}, {.batch_size = 4, .workers = 3});
    auto stream = loader.epoch(0);
    for (int i = 0; i < std::min(taken, 9); ++i) CATCH_CHECK(stream.next().has_value());
    if (taken == 10) CATCH_CHECK_THROWS_AS((void)stream.next(), std::out_of_range);
  }
}

CATCH_TEST_CASE("Worker threads live as long as the stream, and none before it") {
  // A thread that was joined may be listed for a moment longer.
  const auto settle_at = [](std::ptrdiff_t expected) {
    for (int i = 0; i < 2000 && running_threads() != expected; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return running_threads() == expected;
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto before = running_threads();
  const DataLoader loader(numbers(100), {.workers = 3});
  CATCH_CHECK(running_threads() == before);
  {
    auto stream = loader.epoch(0);
    CATCH_CHECK(running_threads() == before + 3);
  }
  CATCH_CHECK(settle_at(before));
  const auto at_the_end = loader.epoch(0, 100);
  CATCH_CHECK(running_threads() == before);
}

CATCH_TEST_CASE("Workers run at most two batches each ahead of the consumer") {
  struct Counting {
    std::shared_ptr<std::atomic<int>> loaded = std::make_shared<std::atomic<int>>(0);
    std::int64_t size() const { return 100; }
    at::Tensor get(std::int64_t index) const {
      ++*loaded;
      return torch::tensor(index);
    }
  };
  const Counting dataset;
  auto stream = DataLoader(dataset, {.workers = 3}).epoch(0);
  const auto settled_at = [&](int expected) {
    for (int i = 0; i < 2000 && *dataset.loaded < expected; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return dataset.loaded->load();
  };
  CATCH_CHECK(settled_at(6) == 6);
  (void)stream.next();
  (void)stream.next();
  CATCH_CHECK(settled_at(8) == 8);
}

CATCH_TEST_CASE("While a batch is used, a worker loads the next ones") {
  struct Announcing {
    std::shared_ptr<std::atomic<std::int64_t>> newest = std::make_shared<std::atomic<std::int64_t>>(-1);
    std::int64_t size() const { return 20; }
    at::Tensor get(std::int64_t index) const {
      *newest = index;
      newest->notify_all();
      return torch::tensor(index);
    }
  };
  const Announcing dataset;
  const DataLoader loader(dataset, {.workers = 1});
  std::int64_t used = 0;
  for (auto& batch : loader) {
    // The use of a batch ends only when the one after it has been asked of the data set.
    const auto number = batch.item<std::int64_t>();
    for (auto newest = dataset.newest->load(); newest < std::min<std::int64_t>(number + 1, 19);
         newest = dataset.newest->load()) {
      dataset.newest->wait(newest);
    }
    ++used;
  }
  CATCH_CHECK(used == 20);
}

CATCH_TEST_CASE("Batches are made in the memory of those that nobody holds") {
  const auto distinct = [](const auto& loader) {
    std::set<const void*> memory;
    std::vector<at::Tensor> others;  // take what memory the batches would give back to the system
    for (auto& batch : loader) {
      memory.insert(batch.data.const_data_ptr());
      for (int i = 0; i < 4; ++i) others.push_back(torch::empty_like(batch.data));
    }
    return memory.size();
  };
  const TensorDataset images(torch::rand({64, 300}), torch::arange(64));
  CATCH_CHECK(distinct(DataLoader(images, {.batch_size = 2})) <= 2);
  CATCH_CHECK(distinct(DataLoader(NoisySet(), {.batch_size = 2})) <= 2);
  // Four loaded, one being loaded in each thread, and two in the loop.
  CATCH_CHECK(distinct(DataLoader(images, {.batch_size = 2, .workers = 2})) <= 8);
}

CATCH_TEST_CASE("What is kept of a batch stays as it was while the loader goes on") {
  const auto data = torch::arange(64.0).view({32, 2});
  for (const int workers : {0, 2}) {
    const DataLoader loader(TensorDataset(data, torch::arange(32)), {.batch_size = 4, .workers = workers});
    std::vector<at::Tensor> rows, products;
    const auto weight = torch::ones({2}).requires_grad_();
    {
      auto streams = std::array{loader.epoch(0), loader.epoch(0)};
      while (streams[0].more()) {
        rows.push_back(streams[0].next()->data[1]);
        products.push_back((streams[1].next()->data * weight).sum());
      }
    }
    for (std::int64_t batch = 0; batch < 8; ++batch) {
      CATCH_CHECK(rows.at(static_cast<std::size_t>(batch)).equal(data[4 * batch + 1]));
    }
    torch::stack(products).sum().backward();
    CATCH_CHECK(weight.grad().equal(torch::tensor({992.0, 1024.0})));  // the sums of the even and odd numbers
  }
}

CATCH_TEST_CASE("Loading leaves Torch's default generator alone") {
  torch::manual_seed(5);
  const auto expected = torch::rand(3);
  torch::manual_seed(5);
  const auto batches =
      rest_of(DataLoader(NoisySet(), {.batch_size = 8, .shuffle = true, .workers = 2}).epoch(0));
  CATCH_CHECK(batches.size() == 7);
  CATCH_CHECK(torch::rand(3).equal(expected));
}

CATCH_TEST_CASE("Batches start on 64 bytes") {
  const DataLoader loader(NoisySet(), {.batch_size = 1, .workers = 1});
  for (auto& batch : loader) {
    CATCH_CHECK(reinterpret_cast<std::uintptr_t>(batch.data.const_data_ptr()) % 64 == 0);
    CATCH_CHECK(reinterpret_cast<std::uintptr_t>(batch.target.const_data_ptr()) % 64 == 0);
  }
}

CATCH_TEST_CASE("All mistakes in the options are in one message") {
  const auto id = [](DataLoaderOptions options) {
    return thrown_id<lockstep::ConfigError>([&] { DataLoader loader(numbers(5), options); });
  };
  CATCH_CHECK(id({.batch_size = 0}) == "invalid-settings");
  CATCH_CHECK(id({.batch_size = -3}) == "invalid-settings");
  CATCH_CHECK(id({.workers = -1}) == "invalid-settings");
  CATCH_CHECK(id({.batch_size = 8, .drop_last = true}) == "invalid-settings");
  CATCH_CHECK(id({.pin_memory = true}) == (at::hasCUDA() ? "" : "invalid-settings"));
  CATCH_CHECK(thrown_id<lockstep::ConfigError>([] { DataLoader loader(std::shared_ptr<BrokenSet>{}); }) ==
              "invalid-settings");
  CATCH_CHECK_THROWS_WITH(DataLoader(numbers(5), {.batch_size = 0, .workers = -1}),
                          Catch::Contains("batch_size is 0") && Catch::Contains("workers is -1"));
}

CATCH_TEST_CASE("A data set without samples, or without a size, is refused") {
  CATCH_CHECK(thrown_id<lockstep::DataError>([] { DataLoader loader(numbers(0)); }) == "empty-dataset");
  struct Negative {
    int size() const { return -1; }
    int get(std::int64_t) const { return 0; }
  };
  CATCH_CHECK(thrown_id<lockstep::DataError>([] { DataLoader loader(Negative{}); }) == "empty-dataset");
  TorchSet unsized;
  unsized.size_ = std::nullopt;
  CATCH_CHECK(thrown_id<lockstep::DataError>([&] { DataLoader loader(unsized); }) == "dataset-without-size");
}

CATCH_TEST_CASE("A shared data set is not copied, and outlives its loader in a stream") {
  auto dataset = std::make_shared<BrokenSet>();
  dataset->broken = 40;
  std::optional<DataLoader<BrokenSet>> loader(std::in_place, dataset,
                                              DataLoaderOptions{.batch_size = 40, .workers = 1});
  auto stream = loader->epoch(0);
  loader.reset();
  std::weak_ptr<BrokenSet> watched = dataset;
  dataset.reset();
  CATCH_CHECK(!watched.expired());
  CATCH_CHECK(stream.next()->numel() == 40);
}

CATCH_TEST_CASE("A constant data set can be shared") {
  const DataLoader loader(std::make_shared<const TensorDataset>(numbers(4)), {.batch_size = 4});
  CATCH_CHECK(values(loader.epoch(0).next()->data) == std::vector<std::int64_t>{0, 1, 2, 3});
}

CATCH_TEST_CASE("A collate functor makes the batch") {
  const DataLoader loader(BrokenSet{.broken = -1}, {.batch_size = 4}, [](std::vector<at::Tensor> samples) {
    return std::pair(samples.size(), samples.back());
  });
  const auto batch = loader.epoch(0).next();
  CATCH_CHECK(batch->first == 4);
  CATCH_CHECK(batch->second.item<std::int64_t>() == 3);
}

CATCH_TEST_CASE("Of several accessors the seeded and the batched ones come first") {
  struct Both {
    std::int64_t size() const { return 3; }
    std::string get(std::int64_t) const { return "get"; }
    std::string get_batch(std::span<const std::int64_t>) const { return "get_batch"; }
  };
  struct Seeded : Both {
    std::int64_t get(std::int64_t, std::uint64_t) const { return 1; }
  };
  struct SeededBatches : Both {
    std::string get_batch(std::span<const std::int64_t> indices, std::span<const std::uint64_t> seeds) const {
      return std::to_string(indices.size()) + " and " + std::to_string(seeds.back());
    }
  };
  CATCH_CHECK(DataLoader(Both()).epoch(0).next() == "get_batch");
  CATCH_CHECK(DataLoader(Seeded(), {.batch_size = 2}).epoch(0).next()->sum().item<std::int64_t>() == 2);
  CATCH_CHECK(DataLoader(SeededBatches(), {.batch_size = 2, .seed = 7}).epoch(0).next() ==
              "2 and 17770702679626417888");
}

CATCH_TEST_CASE("Data sets of torch::data fit in, mapped and stacked ones too") {
  const DataLoader plain(TorchSet(), {.batch_size = 2, .workers = 2});
  CATCH_CHECK(plain.size() == 3);
  const auto batch = plain.epoch(0, 1).next();
  static_assert(std::same_as<decltype(batch), const std::optional<torch::data::Example<>>>);
  CATCH_CHECK(batch->data.equal(torch::tensor({{2.0, 2.0}, {3.0, 3.0}})));
  CATCH_CHECK(values(batch->target) == std::vector<std::int64_t>{2, 3});

  const auto normalize = torch::data::transforms::Normalize<>(1.0, 2.0);
  const DataLoader mapped(TorchSet().map(normalize), {.batch_size = 2});
  CATCH_CHECK(mapped.epoch(0, 1).next()->data.flatten(1).equal(torch::tensor({{0.5, 0.5}, {1.0, 1.0}})));
  const DataLoader stacked(TorchSet().map(torch::data::transforms::Stack<>()), {.batch_size = 2});
  CATCH_CHECK(values(stacked.epoch(0, 2).next()->target) == std::vector<std::int64_t>{4});
}
