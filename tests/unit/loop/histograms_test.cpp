#include "loop/histograms.hpp"

#include <cmath>
#include <limits>

#include "support/fixtures.hpp"

using namespace lockstep;
using namespace lockstep::test;

CATCH_TEST_CASE("a histogram counts every finite value once, between its limits") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto found = histogram("w", torch::tensor({-1.0, 0.0, 0.5, 0.5, 2.0, nan}));
  CATCH_CHECK(found.name == "w");
  CATCH_CHECK(found.num == 5);
  CATCH_CHECK(found.min == -1);
  CATCH_CHECK(found.max == 2);
  CATCH_CHECK(found.sum == 2);
  CATCH_CHECK(found.sum_squares == 5.5);
  CATCH_REQUIRE(found.counts.size() == found.bucket_limits.size());
  const auto at = [&](double value) {
    double count = 0;
    for (std::size_t i = 0; i < found.counts.size(); ++i) {
      if (value < found.bucket_limits[i] && (i == 0 || value >= found.bucket_limits[i - 1])) count = found.counts[i];
    }
    return count;
  };
  CATCH_CHECK(at(-1) == 1);
  CATCH_CHECK(at(0) == 1);
  CATCH_CHECK(at(0.5) == 2);
  CATCH_CHECK(at(2) == 1);
  CATCH_CHECK(found.counts.front() == 1);
  CATCH_CHECK(found.counts.back() == 1);
}

CATCH_TEST_CASE("the largest values fall into the last bucket, and of nothing finite there is nothing") {
  const auto largest = histogram("w", torch::tensor({std::numeric_limits<double>::max()}, torch::kDouble));
  CATCH_CHECK(largest.counts == std::vector<double>{1});
  CATCH_CHECK(largest.bucket_limits.back() == std::numeric_limits<double>::max());
  CATCH_CHECK(histogram("w", torch::tensor({INFINITY})).num == 0);
  CATCH_CHECK(histogram("w", torch::empty({0})).counts.empty());
}

CATCH_TEST_CASE("weights and gradients are logged as histograms when they are due") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(4), ledger, {.logger = log.logger()});
  (void)run.trainer.train({.epochs = 1, .log_histograms_every = Interval{2, Interval::Unit::step}});
  CATCH_CHECK(log.count("histograms") == 2);
  for (const auto& event : log.events()) {
    if (event.event != "histograms") continue;
    CATCH_REQUIRE(event.histograms.size() == 2);
    CATCH_CHECK(event.histograms[0].name == "weights/w");
    CATCH_CHECK(event.histograms[0].sum == static_cast<double>(-event.step));
    CATCH_CHECK(event.histograms[1].name == "gradients/w");
    CATCH_CHECK(event.histograms[1].sum == 1);
  }
}
