#include "lockstep/tensors/metric_totals.hpp"

#include <cmath>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using Means = std::vector<std::pair<std::string, double>>;

CATCH_TEST_CASE("a mean is the sum over all microbatches divided once") {
  MetricTotals totals;
  totals.add(1.0, 3, {{"accuracy", MeanMetric(2.0, 3)}});
  totals.add(5.0, 1, {{"accuracy", MeanMetric(torch::tensor(1), 1)}});
  CATCH_CHECK(totals.means() == Means{{"loss", 2.0}, {"accuracy", 0.75}});
}

CATCH_TEST_CASE("a metric that comes in only some microbatches is the mean of those") {
  MetricTotals totals;
  totals.add(1.0, 1, {{"a", MeanMetric(1.0, 1)}});
  totals.add(1.0, 1, {{"b", MeanMetric(4.0, 2)}});
  totals.add(1.0, 1, {{"b", MeanMetric(2.0, 1)}, {"a", MeanMetric(2.0, 1)}});
  CATCH_CHECK(totals.means() == Means{{"loss", 1.0}, {"a", 1.5}, {"b", 2.0}});
}

CATCH_TEST_CASE("a metric of nothing is NaN") {
  MetricTotals totals;
  totals.add("recall", 0, 0);
  CATCH_CHECK(std::isnan(totals.means()[0].second));
}

CATCH_TEST_CASE("sums are kept in double") {
  MetricTotals totals;
  for (int i = 0; i < 3; ++i) totals.add("big", 16777217.0, 1);
  CATCH_CHECK(totals.entries()[0].sum == 50331651.0);
  CATCH_CHECK(totals.entries()[0].count == 3);
}

CATCH_TEST_CASE("a metric tensor may have a graph, any number type and any shape of one element") {
  MetricTotals totals;
  const auto with_graph = torch::tensor(2.0, torch::requires_grad());
  totals.add(0.0, 1,
             {{"a", MeanMetric(with_graph * 2, 1)},
              {"b", MeanMetric(torch::ones({1, 1}, torch::kLong), 2)},
              {"c", MeanMetric(torch::tensor(true), 1)},
              {"d", MeanMetric(torch::tensor(0.5, torch::kHalf), 1)}});
  CATCH_CHECK(totals.means() == Means{{"loss", 0.0}, {"a", 4.0}, {"b", 0.5}, {"c", 1.0}, {"d", 0.5}});
}

CATCH_TEST_CASE("a metric's count may be an integer tensor of one element") {
  MetricTotals totals;
  totals.add(0.0, 1, {{"a", MeanMetric(6.0, torch::tensor({3}, torch::kInt))}});
  totals.add(0.0, 1, {{"a", MeanMetric(torch::tensor(4), torch::tensor({1, 0, 1}).ne(0).sum())}});
  CATCH_CHECK(totals.means() == Means{{"loss", 0.0}, {"a", 2.0}});
}

CATCH_TEST_CASE("merging adds sums and counts by name") {
  MetricTotals first, second;
  first.add(1.0, 1, {{"a", MeanMetric(1.0, 1)}});
  second.add(4.0, 2, {{"b", MeanMetric(1.0, 4)}, {"a", MeanMetric(5.0, 1)}});
  first.merge(second);
  CATCH_CHECK(first.means() == Means{{"loss", 3.0}, {"a", 3.0}, {"b", 0.25}});
  CATCH_CHECK(second.means() == Means{{"loss", 4.0}, {"b", 0.25}, {"a", 5.0}});
}

CATCH_TEST_CASE("cleared totals start anew") {
  MetricTotals totals;
  CATCH_CHECK(totals.empty());
  totals.add("a", 1, 1);
  CATCH_CHECK_FALSE(totals.empty());
  totals.clear();
  CATCH_CHECK(totals.empty());
}

CATCH_TEST_CASE("a metric that cannot be averaged is refused with its name") {
  const auto id = [](Metrics metrics) {
    return test::thrown_id<StepError>([&] { MetricTotals().add(0.0, 1, std::move(metrics)); });
  };
  CATCH_CHECK(id({{"loss", MeanMetric(1.0, 1)}}) == "invalid-metric");
  CATCH_CHECK(id({{"", MeanMetric(1.0, 1)}}) == "invalid-metric");
  CATCH_CHECK(id({{"a", MeanMetric(1.0, -1)}}) == "invalid-metric");
  CATCH_CHECK(id({{"a", MeanMetric(torch::ones({2}), 2)}}) == "invalid-metric");
  CATCH_CHECK(id({{"a", MeanMetric(1.0, SampleCount())}}) == "invalid-metric");
  CATCH_CHECK(id({{"a", MeanMetric(1.0, torch::tensor(-1))}}) == "invalid-metric");
  CATCH_CHECK(id({{"a", MeanMetric(1.0, torch::tensor(1.0))}}) == "invalid-metric");
  CATCH_CHECK(id({{"a", MeanMetric(1.0, torch::tensor(true))}}) == "invalid-metric");
  CATCH_CHECK(id({{"a", MeanMetric(1.0, torch::tensor({1, 1}))}}) == "invalid-metric");
  CATCH_CHECK_THROWS_WITH(MetricTotals().add(0.0, 1, {{"per_class", MeanMetric(torch::ones({2}), 2)}}),
                          Catch::Matchers::Contains("per_class"));
}
