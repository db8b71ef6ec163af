#include "lockstep/tensors/step_output.hpp"

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("any integer is a sample count, and one that was not given can be told from all that were") {
  CATCH_CHECK(SampleCount(3).number() == 3);
  CATCH_CHECK(SampleCount(std::size_t{4}).number() == 4);
  CATCH_CHECK(SampleCount(std::int32_t{0}).number() == 0);
  CATCH_CHECK(StepOutput{}.num_samples.number() < 0);
  CATCH_CHECK_FALSE(StepOutput{}.num_samples.tensor().defined());
  static_assert(!std::is_convertible_v<double, SampleCount>);
}

CATCH_TEST_CASE("a tensor is a sample count, which is not read when it is given") {
  const StepOutput output{.loss = {}, .num_samples = torch::tensor({1, 0, 1}).ne(0).sum()};
  CATCH_CHECK(output.num_samples.number() < 0);
  CATCH_CHECK(output.num_samples.tensor().item<std::int64_t>() == 2);
}

CATCH_TEST_CASE("metrics keep the order they were given in") {
  Metrics metrics{{"b", MeanMetric(1.0, 2)}, {"a", MeanMetric(torch::tensor(3.0), 4)}};
  metrics.add("c", MeanMetric(5, 6));
  CATCH_REQUIRE(metrics.size() == 3);
  std::string names;
  for (const auto& [name, metric] : metrics) names += name;
  CATCH_CHECK(names == "bac");
}

CATCH_TEST_CASE("a metric's sum is a number or a tensor") {
  const MeanMetric number(1.5, 2);
  CATCH_CHECK_FALSE(number.sum.defined());
  CATCH_CHECK(number.number == 1.5);
  CATCH_CHECK(number.count.number() == 2);
  const MeanMetric tensor(torch::tensor(2.5), 3);
  CATCH_CHECK(tensor.sum.item<double>() == 2.5);
  CATCH_CHECK(tensor.count.number() == 3);
}
