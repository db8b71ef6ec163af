#include "loop/training_totals.hpp"

#include <cmath>

#include "support/catch.hpp"

using namespace lockstep;

namespace {

MetricTotals window(double loss, std::int64_t samples = 1) {
  MetricTotals totals;
  totals.add(loss, samples, {});
  return totals;
}

double mean(MetricTotals totals, std::size_t index = 0) { return totals.means().at(index).second; }

}  // namespace

CATCH_TEST_CASE("an epoch's mean counts each window once, wherever the log lines are") {
  const int log_every = GENERATE(1, 2, 3, 4, 5, 100);
  TrainingTotals totals;
  std::vector<double> epochs;
  for (int n = 1; n <= 9; ++n) {
    totals.add(window(n), 1.0);
    if (n % log_every == 0) (void)totals.take_line();
    if (n % 3 == 0) epochs.push_back(mean(totals.take_epoch(false)));
  }
  CATCH_CHECK(epochs == std::vector<double>{2, 5, 8});
}

CATCH_TEST_CASE("a log line covers the windows since the last one, an epoch's end between them included") {
  TrainingTotals totals;
  std::vector<double> lines;
  for (int n = 1; n <= 8; ++n) {
    totals.add(window(n), 1.0);
    if (n % 4 == 0) lines.push_back(mean(totals.take_line()));
    if (n % 3 == 0) (void)totals.take_epoch(false);
  }
  CATCH_CHECK(lines == std::vector<double>{2.5, 6.5});
}

CATCH_TEST_CASE("a line is the sum in the order of its windows, to the bit, though an epoch ends in it") {
  // In another order, or in two parts, the small ones would not be lost.
  TrainingTotals totals;
  totals.add(window(1e16), 1.0);
  totals.add(window(1), 1.0);
  (void)totals.take_epoch(false);
  totals.add(window(1), 1.0);
  totals.add(window(-1e16), 1.0);
  CATCH_CHECK(totals.take_line().entries().at(0).sum == 0);
  CATCH_CHECK(totals.take_epoch(false).entries().at(0).sum == 1 - 1e16);
}

CATCH_TEST_CASE("what is not finite in one epoch does not reach the next") {
  TrainingTotals totals;
  totals.add(window(NAN), 1.0);
  CATCH_CHECK(std::isnan(mean(totals.take_epoch(false))));
  totals.add(window(2), 1.0);
  (void)totals.take_line();
  CATCH_CHECK(mean(totals.take_epoch(false)) == 2);
}

CATCH_TEST_CASE("the mean gradient norm is over the epoch's updates, skipped windows left out") {
  TrainingTotals totals;
  totals.add(window(1), 2.0);
  totals.add(window(1), std::nullopt);
  totals.add(window(1), 5.0);
  CATCH_CHECK(mean(totals.take_epoch(true), 1) == 3.5);
  totals.add(window(1), std::nullopt);
  CATCH_CHECK(std::isnan(mean(totals.take_epoch(true), 1)));
}

CATCH_TEST_CASE("totals that are saved and loaded after any window give the same lines and epochs") {
  const int saved_after = GENERATE(range(1, 9));
  TrainingTotals kept;
  TrainingTotals changed;
  std::vector<double> expected, found;
  for (int n = 1; n <= 9; ++n) {
    for (auto* totals : {&kept, &changed}) {
      auto& values = totals == &kept ? expected : found;
      totals->add(window(0.1 * n, n), 0.3 * n);
      if (n % 2 == 0) values.push_back(mean(totals->take_line()));
      if (n % 3 != 0) continue;
      MetricTotals epoch = totals->take_epoch(true);
      for (const auto& each : epoch.means()) values.push_back(each.second);
    }
    if (n != saved_after) continue;
    TrainingTotals loaded;
    loaded.load(changed.state());
    changed = std::move(loaded);
  }
  CATCH_CHECK(found == expected);
}

CATCH_TEST_CASE("any number of windows without an end of the epoch takes no more memory than one") {
  TrainingTotals totals;
  totals.add(window(1), 1.0);
  const auto tensors = totals.state().size();
  for (int n = 0; n < 100'000; ++n) {
    totals.add(window(1), 1.0);
    if (n % 10 == 0) (void)totals.take_line();
  }
  CATCH_CHECK(totals.state().size() == tensors + 1);  // those since the last line, apart
}

CATCH_TEST_CASE("totals of a checkpoint without any begin empty") {
  TrainingTotals totals;
  totals.add(window(1), 1.0);
  totals.load({});
  CATCH_CHECK(totals.take_epoch(false).empty());
}
