#include "lockstep/data/dataset.hpp"

#include <array>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using lockstep::Dataset;
using lockstep::TensorDataset;

namespace {

struct Crops {
  std::int64_t size() const;
  lockstep::Example get(std::int64_t index, std::uint64_t sample_seed) const;
};
struct Batched {
  unsigned size();
  at::Tensor get_batch(std::span<const std::int64_t> indices, std::span<const std::uint64_t> sample_seeds);
};
struct Stream {
  std::optional<lockstep::Example> next();
};
struct WithoutAccess {
  std::int64_t size() const;
};
struct WithoutSize {
  at::Tensor get(std::int64_t index) const;
};

static_assert(Dataset<Crops>);
static_assert(Dataset<Batched>);
static_assert(Dataset<TensorDataset>);
static_assert(Dataset<const TensorDataset>);
static_assert(Dataset<torch::data::datasets::MNIST>);
static_assert(Dataset<torch::data::datasets::MapDataset<torch::data::datasets::MNIST,
                                                        torch::data::transforms::Stack<>>>);
static_assert(!Dataset<Stream>);
static_assert(!Dataset<WithoutAccess>);
static_assert(!Dataset<WithoutSize>);
static_assert(!Dataset<std::vector<lockstep::Example>>);

bool starts_on_64_bytes(const at::Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64 == 0;
}

}  // namespace

CATCH_TEST_CASE("A TensorDataset gathers the rows asked for, repeats included") {
  const TensorDataset dataset(torch::arange(12).view({4, 3}), torch::tensor({10, 11, 12, 13}));
  CATCH_CHECK(dataset.size() == 4);
  const auto batch = dataset.get_batch(std::array<std::int64_t, 3>{2, 0, 2});
  CATCH_CHECK(batch.data.equal(torch::tensor({{6, 7, 8}, {0, 1, 2}, {6, 7, 8}})));
  CATCH_CHECK(batch.target.equal(torch::tensor({12, 10, 12})));
}

CATCH_TEST_CASE("A TensorDataset's batches are contiguous buffers of their own on 64 bytes") {
  // Rows of three floats: a view of any but the first would start elsewhere.
  const auto data = torch::rand({3, 8}).t();
  const TensorDataset dataset(data, torch::rand(8));
  for (std::int64_t row = 0; row < 8; ++row) {
    const auto batch = dataset.get_batch(std::array<std::int64_t, 1>{row});
    CATCH_CHECK(batch.data.is_contiguous());
    CATCH_CHECK(!batch.data.is_alias_of(data));
    CATCH_CHECK(starts_on_64_bytes(batch.data));
    CATCH_CHECK(starts_on_64_bytes(batch.target));
  }
}

CATCH_TEST_CASE("A TensorDataset gathers from tensors of every kind, short rows and long") {
  const auto indices = std::array<std::int64_t, 2>{3, 1};
  const auto equals_rows = [&](const at::Tensor& data) {
    const auto batch = TensorDataset(data).get_batch(indices).data;
    return batch.equal(torch::stack({data[3], data[1]})) && batch.is_contiguous();
  };
  const auto numbers = torch::arange(12.0).view({4, 3});
  CATCH_CHECK(equals_rows(numbers));
  CATCH_CHECK(equals_rows(torch::arange(4)));
  CATCH_CHECK(equals_rows(numbers.t().contiguous().t()));
  CATCH_CHECK(equals_rows(torch::tensor({1.0, 2.0, 3.0}).expand({4, 3})));
  CATCH_CHECK(equals_rows(torch::complex(numbers, numbers + 1).conj()));
  CATCH_CHECK(equals_rows(numbers.to(at::kBool)));
  CATCH_CHECK(equals_rows(torch::rand({4, 3, 200, 250})));
  CATCH_CHECK(equals_rows(torch::empty({4, 0})));
  CATCH_CHECK(!TensorDataset(numbers.clone().requires_grad_()).get_batch(indices).data.requires_grad());
}

CATCH_TEST_CASE("A TensorDataset refuses rows that it does not have") {
  const TensorDataset dataset(torch::ones({2, 3}));
  CATCH_CHECK_THROWS_AS((void)dataset.get_batch(std::array<std::int64_t, 1>{2}), c10::IndexError);
  CATCH_CHECK_THROWS_AS((void)dataset.get_batch(std::array<std::int64_t, 1>{-1}), c10::IndexError);
}

CATCH_TEST_CASE("A TensorDataset without targets yields none") {
  const TensorDataset dataset(torch::ones({2, 3}));
  const auto batch = dataset.get_batch(std::array<std::int64_t, 1>{1});
  CATCH_CHECK(batch.data.equal(torch::ones({1, 3})));
  CATCH_CHECK(!batch.target.defined());
}

CATCH_TEST_CASE("A TensorDataset refuses tensors with unequal or no rows") {
  using lockstep::DataError;
  const auto id = [](at::Tensor data, at::Tensor target) {
    return lockstep::test::thrown_id<DataError>([&] { TensorDataset(data, target); });
  };
  CATCH_CHECK(id(torch::ones({3, 2}), torch::ones(4)) == "rows-differ");
  CATCH_CHECK(id(torch::ones({3, 2}), torch::tensor(1.0)) == "rows-differ");
  CATCH_CHECK(id(torch::tensor(1.0), {}) == "rows-differ");
  CATCH_CHECK(id({}, {}) == "rows-differ");
  CATCH_CHECK_THROWS_WITH(TensorDataset(torch::ones({3, 2}), torch::ones(4)),
                          Catch::Contains("data has 3 rows and target 4"));
}
