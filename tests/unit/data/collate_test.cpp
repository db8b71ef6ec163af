#include "lockstep/data/collate.hpp"

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

namespace {

template <class Sample>
auto collated(std::vector<Sample> samples) {
  return lockstep::DefaultCollate()(std::move(samples));
}

template <class Sample>
std::string refusal(std::vector<Sample> samples) {
  return lockstep::test::thrown_id<lockstep::DataError>([&] { collated(samples); });
}

}  // namespace

namespace speech {

struct Utterance {
  std::vector<float> frames;
};
struct Padded {
  at::Tensor frames, lengths;
};

Padded collate(std::vector<Utterance> utterances) {
  std::size_t longest = 0;
  for (const auto& utterance : utterances) longest = std::max(longest, utterance.frames.size());
  const auto count = static_cast<std::int64_t>(utterances.size());
  Padded batch{torch::zeros({count, static_cast<std::int64_t>(longest)}), torch::zeros(count, at::kLong)};
  for (std::int64_t row = 0; row < count; ++row) {
    const auto& frames = utterances[static_cast<std::size_t>(row)].frames;
    batch.lengths[row] = static_cast<std::int64_t>(frames.size());
    for (std::size_t i = 0; i < frames.size(); ++i)
      batch.frames[row][static_cast<std::int64_t>(i)] = frames[i];
  }
  return batch;
}

}  // namespace speech

CATCH_TEST_CASE("Tensors are stacked into a new buffer on 64 bytes, one alone too") {
  const auto sample = torch::rand({2, 3});
  const auto batch = collated(std::vector<at::Tensor>{sample});
  CATCH_CHECK(batch.sizes() == at::IntArrayRef({1, 2, 3}));
  CATCH_CHECK(batch[0].equal(sample));
  CATCH_CHECK(!batch.is_alias_of(sample));
  CATCH_CHECK(reinterpret_cast<std::uintptr_t>(batch.const_data_ptr()) % 64 == 0);
  const auto two = collated(std::vector<at::Tensor>{torch::tensor({1, 2}), torch::tensor({3, 4})});
  CATCH_CHECK(two.equal(torch::tensor({{1, 2}, {3, 4}})));
}

CATCH_TEST_CASE("Samples of other shapes or types are refused, with both described") {
  CATCH_CHECK(refusal(std::vector{torch::ones({2}), torch::ones({3})}) == "uneven-samples");
  CATCH_CHECK(refusal(std::vector{torch::ones({2}), torch::ones({2}, at::kLong)}) == "uneven-samples");
  CATCH_CHECK(refusal(std::vector{torch::ones({2}), at::Tensor()}) == "uneven-samples");
  CATCH_CHECK_THROWS_WITH(collated(std::vector{torch::ones({2, 4}), torch::ones({3, 4})}),
                          Catch::Contains("the first is Float [2, 4], another is Float [3, 4]"));
}

CATCH_TEST_CASE("Numbers become a tensor of the type that labels and measurements have") {
  CATCH_CHECK(collated(std::vector<int>{3, 4}).equal(torch::tensor({3, 4}, at::kLong)));
  CATCH_CHECK(collated(std::vector<std::uint8_t>{3, 255}).equal(torch::tensor({3, 255}, at::kLong)));
  CATCH_CHECK(collated(std::vector<float>{0.5f, 1}).equal(torch::tensor({0.5, 1.0}, at::kFloat)));
  CATCH_CHECK(collated(std::vector<double>{0.1, 1}).equal(torch::tensor({0.1, 1.0}, at::kDouble)));
  CATCH_CHECK(collated(std::vector<bool>{true, false}).equal(torch::tensor({1, 0}, at::kBool)));
}

CATCH_TEST_CASE("Examples are collated field by field") {
  using lockstep::Example;
  const auto batch = collated(std::vector<Example>{{torch::tensor({1, 2}), torch::tensor(5)},
                                                   {torch::tensor({3, 4}), torch::tensor(6)}});
  static_assert(std::same_as<decltype(batch), const Example>);
  CATCH_CHECK(batch.data.equal(torch::tensor({{1, 2}, {3, 4}})));
  CATCH_CHECK(batch.target.equal(torch::tensor({5, 6})));
  CATCH_CHECK(!collated(std::vector<Example>{{torch::ones(2), {}}, {torch::ones(2), {}}}).target.defined());
}

CATCH_TEST_CASE("torch's examples stay torch's examples") {
  const auto batch = collated(std::vector<torch::data::Example<>>{{torch::tensor({1}), torch::tensor(5)},
                                                                  {torch::tensor({3}), torch::tensor(6)}});
  static_assert(std::same_as<decltype(batch), const torch::data::Example<>>);
  CATCH_CHECK(batch.data.equal(torch::tensor({{1}, {3}})));
  CATCH_CHECK(batch.target.equal(torch::tensor({5, 6})));
  const auto counted = collated(std::vector<torch::data::Example<at::Tensor, int>>{{torch::tensor({1}), 5}});
  static_assert(std::same_as<decltype(counted), const torch::data::Example<>>);
  CATCH_CHECK(counted.target.equal(torch::tensor({5}, at::kLong)));
  const auto unlabelled = collated(std::vector<torch::data::TensorExample>{{torch::tensor({1})}});
  static_assert(std::same_as<decltype(unlabelled), const torch::data::TensorExample>);
  CATCH_CHECK(unlabelled.data.equal(torch::tensor({{1}})));
}

CATCH_TEST_CASE("Pairs, tuples, vectors and maps are collated element by element") {
  const auto pair =
      collated(std::vector<std::pair<at::Tensor, int>>{{torch::tensor({1}), 5}, {torch::tensor({2}), 6}});
  CATCH_CHECK(pair.first.equal(torch::tensor({{1}, {2}})));
  CATCH_CHECK(pair.second.equal(torch::tensor({5, 6}, at::kLong)));

  const auto tuple = collated(std::vector<std::tuple<int, bool, float>>{{1, true, 0.5f}, {2, false, 1.5f}});
  CATCH_CHECK(std::get<0>(tuple).equal(torch::tensor({1, 2}, at::kLong)));
  CATCH_CHECK(std::get<1>(tuple).equal(torch::tensor({1, 0}, at::kBool)));
  CATCH_CHECK(std::get<2>(tuple).equal(torch::tensor({0.5, 1.5}, at::kFloat)));

  const auto vector = collated(std::vector<std::vector<int>>{{1, 2, 3}, {4, 5, 6}});
  CATCH_REQUIRE(vector.size() == 3);
  CATCH_CHECK(vector[2].equal(torch::tensor({3, 6}, at::kLong)));

  using Named = std::map<std::string, at::Tensor>;
  const auto map = collated(std::vector<Named>{{{"a", torch::tensor(1)}, {"b", torch::tensor(2)}},
                                               {{"a", torch::tensor(3)}, {"b", torch::tensor(4)}}});
  CATCH_REQUIRE(map.size() == 2);
  CATCH_CHECK(map.at("a").equal(torch::tensor({1, 3})));
  CATCH_CHECK(map.at("b").equal(torch::tensor({2, 4})));
}

CATCH_TEST_CASE("Vectors of other lengths and maps of other keys are refused") {
  using Named = std::map<std::string, int>;
  CATCH_CHECK(refusal(std::vector<std::vector<int>>{{1, 2}, {1}}) == "uneven-samples");
  CATCH_CHECK(refusal(std::vector<Named>{{{"a", 1}}, {{"b", 1}}}) == "uneven-samples");
  CATCH_CHECK_THROWS_WITH(collated(std::vector<Named>{{{"a", 1}}, {{"a", 1}, {"b", 1}}}),
                          Catch::Contains("the first is keys 'a', another is keys 'a' 'b'"));
}

CATCH_TEST_CASE("A struct of the user's is collated by the function in its namespace, inside a pair too") {
  const auto batch = collated(std::vector<speech::Utterance>{{{1, 2, 3}}, {{4}}});
  CATCH_CHECK(batch.frames.equal(torch::tensor({{1.0, 2.0, 3.0}, {4.0, 0.0, 0.0}}, at::kFloat)));
  CATCH_CHECK(batch.lengths.equal(torch::tensor({3, 1}, at::kLong)));
  const auto labelled = collated(std::vector<std::pair<speech::Utterance, int>>{{{{1}}, 7}, {{{2, 3}}, 8}});
  CATCH_CHECK(labelled.first.lengths.equal(torch::tensor({1, 2}, at::kLong)));
  CATCH_CHECK(labelled.second.equal(torch::tensor({7, 8}, at::kLong)));
}
