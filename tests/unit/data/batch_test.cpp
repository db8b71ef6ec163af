#include "lockstep/data/batch.hpp"

#include "support/catch.hpp"

using lockstep::place;
using lockstep::Placement;

namespace {

const Placement kHalf{.floating = at::kBFloat16};

}  // namespace

namespace mine {

struct Sentences {
  at::Tensor tokens, weights;
  bool moved = false;
};

Sentences to_device(const Sentences& batch, const Placement& placement) {
  return {place(batch.tokens, placement), place(batch.weights, placement), true};
}

// Converts to a tensor, but is more than one.
struct Masked {
  at::Tensor values, mask;
  operator at::Tensor() const { return values; }
};

Masked to_device(const Masked& batch, const Placement& placement) {
  return {place(batch.values, placement), place(batch.mask, placement)};
}

}  // namespace mine

CATCH_TEST_CASE("Floating tensors get the type asked for, others keep theirs") {
  CATCH_CHECK(place(torch::ones(2), kHalf).scalar_type() == at::kBFloat16);
  CATCH_CHECK(place(torch::ones(2, at::kDouble), kHalf).scalar_type() == at::kBFloat16);
  CATCH_CHECK(place(torch::ones(2, at::kLong), kHalf).scalar_type() == at::kLong);
  CATCH_CHECK(place(torch::ones(2, at::kByte), kHalf).scalar_type() == at::kByte);
  CATCH_CHECK(place(torch::ones(2, at::kBool), kHalf).scalar_type() == at::kBool);
  CATCH_CHECK(place(torch::ones(2, at::kComplexFloat), kHalf).scalar_type() == at::kComplexFloat);
  CATCH_CHECK(place(torch::ones(2, at::kDouble), Placement{}).scalar_type() == at::kDouble);
}

CATCH_TEST_CASE("Tensors go to the device asked for") {
  const auto moved = place(torch::ones(2), Placement{.device = at::kMeta, .floating = at::kHalf});
  CATCH_CHECK(moved.device() == at::Device(at::kMeta));
  CATCH_CHECK(moved.scalar_type() == at::kHalf);
  CATCH_CHECK(moved.sizes() == at::IntArrayRef({2}));
}

CATCH_TEST_CASE("A tensor that is there already is shared, and an undefined one stays so") {
  const auto tensor = torch::ones(2);
  CATCH_CHECK(place(tensor, Placement{.floating = at::kFloat}).is_same(tensor));
  CATCH_CHECK(place(tensor, Placement{}).is_same(tensor));
  CATCH_CHECK(!place(at::Tensor(), kHalf).defined());
}

CATCH_TEST_CASE("Examples, torch's and ours, are moved field by field") {
  const auto ours = place(lockstep::Example{torch::ones(2), torch::ones(2, at::kLong)}, kHalf);
  CATCH_CHECK(ours.data.scalar_type() == at::kBFloat16);
  CATCH_CHECK(ours.target.scalar_type() == at::kLong);
  const auto torchs = place(torch::data::Example<>(torch::ones(2), torch::ones(2)), kHalf);
  CATCH_CHECK(torchs.data.scalar_type() == at::kBFloat16);
  CATCH_CHECK(torchs.target.scalar_type() == at::kBFloat16);
  const auto unlabelled = place(torch::data::TensorExample(torch::ones(2)), kHalf);
  static_assert(std::same_as<decltype(unlabelled), const torch::data::TensorExample>);
  CATCH_CHECK(unlabelled.data.scalar_type() == at::kBFloat16);
}

CATCH_TEST_CASE("Containers are moved element by element, numbers and strings as they are") {
  const auto pair = place(std::pair(torch::ones(2), std::int64_t{3}), kHalf);
  CATCH_CHECK(pair.first.scalar_type() == at::kBFloat16);
  CATCH_CHECK(pair.second == 3);
  const auto tuple = place(std::tuple(torch::ones(2), std::string("caption"), 0.1), kHalf);
  CATCH_CHECK(std::get<0>(tuple).scalar_type() == at::kBFloat16);
  CATCH_CHECK(std::get<1>(tuple) == "caption");
  CATCH_CHECK(std::get<2>(tuple) == 0.1);
  const auto vector = place(std::vector{torch::ones(2), torch::ones(3)}, kHalf);
  CATCH_REQUIRE(vector.size() == 2);
  CATCH_CHECK(vector[1].scalar_type() == at::kBFloat16);
  using Named = std::map<std::string, std::vector<at::Tensor>>;
  const auto map = place(Named{{"a", {torch::ones(2)}}, {"b", {}}}, kHalf);
  CATCH_REQUIRE(map.size() == 2);
  CATCH_CHECK(map.at("a").at(0).scalar_type() == at::kBFloat16);
}

CATCH_TEST_CASE("A struct of the user's is moved by the function in its namespace, inside a vector too") {
  const mine::Sentences batch{torch::ones(2, at::kLong), torch::ones(2)};
  const auto moved = place(batch, kHalf);
  CATCH_CHECK(moved.moved);
  CATCH_CHECK(moved.weights.scalar_type() == at::kBFloat16);
  CATCH_CHECK(place(std::vector{batch}, kHalf).at(0).moved);
  const auto masked = place(mine::Masked{torch::ones(2), torch::ones(2, at::kBool)}, kHalf);
  CATCH_CHECK(masked.mask.defined());
  CATCH_CHECK(masked.values.scalar_type() == at::kBFloat16);
}
