#include "lockstep/config/monitor.hpp"

#include <limits>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("the first finite value is the best so far") {
  TrainState state{.step = 7};
  const Verdict verdict = Monitor("validation/loss").judge(2.0, state);
  CATCH_REQUIRE(verdict.improved);
  CATCH_REQUIRE(state.best_metric == 2.0);
  CATCH_REQUIRE(state.best_step == 7);
  CATCH_REQUIRE(state.evaluations_without_improvement == 0);
}

CATCH_TEST_CASE("a tie keeps the earlier value") {
  TrainState state{.step = 9, .best_metric = 2.0, .best_step = 7};
  CATCH_REQUIRE_FALSE(Monitor("validation/loss").judge(2.0, state).improved);
  CATCH_REQUIRE(state.best_step == 7);
  CATCH_REQUIRE(state.evaluations_without_improvement == 1);
}

CATCH_TEST_CASE("the direction decides what is better") {
  TrainState low{.best_metric = 2.0};
  CATCH_REQUIRE(Monitor("validation/loss").judge(1.0, low).improved);
  TrainState high{.best_metric = 2.0};
  const Monitor accuracy("validation/accuracy", {.direction = Direction::maximize});
  CATCH_REQUIRE_FALSE(accuracy.judge(1.0, high).improved);
  CATCH_REQUIRE(accuracy.judge(3.0, high).improved);
}

CATCH_TEST_CASE("an improvement must be larger than min_delta") {
  const Monitor monitor("validation/loss", {.min_delta = 0.5});
  TrainState state{.best_metric = 2.0};
  CATCH_REQUIRE_FALSE(monitor.judge(1.5, state).improved);
  CATCH_REQUIRE(state.best_metric == 2.0);
  CATCH_REQUIRE(monitor.judge(1.25, state).improved);
  CATCH_REQUIRE(state.best_metric == 1.25);
}

CATCH_TEST_CASE("a value that is not finite never is the best and uses up patience") {
  const double value =
      GENERATE(std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
               -std::numeric_limits<double>::infinity());
  TrainState state;
  const Verdict verdict = Monitor("validation/loss", {.patience = 1}).judge(value, state);
  CATCH_REQUIRE_FALSE(verdict.improved);
  CATCH_REQUIRE(verdict.stop);
  CATCH_REQUIRE_FALSE(state.best_metric.has_value());
}

CATCH_TEST_CASE("patience counts evaluations in a row, and an improvement starts it anew") {
  const Monitor monitor("validation/loss", {.patience = 2});
  TrainState state;
  CATCH_REQUIRE_FALSE(monitor.judge(3.0, state).stop);
  CATCH_REQUIRE_FALSE(monitor.judge(4.0, state).stop);
  CATCH_REQUIRE_FALSE(monitor.judge(2.0, state).stop);
  CATCH_REQUIRE_FALSE(monitor.judge(2.5, state).stop);
  CATCH_REQUIRE(monitor.judge(2.5, state).stop);
}

CATCH_TEST_CASE("without patience nothing stops the run") {
  TrainState state{.best_metric = 1.0, .evaluations_without_improvement = 1000};
  CATCH_REQUIRE_FALSE(Monitor("validation/loss").judge(2.0, state).stop);
}

CATCH_TEST_CASE("patience does not count before the start epoch") {
  const Monitor monitor("validation/loss", {.patience = 1, .start_epoch = 3});
  TrainState state{.epoch = 2, .best_metric = 1.0};
  CATCH_REQUIRE_FALSE(monitor.judge(2.0, state).stop);
  CATCH_REQUIRE(state.evaluations_without_improvement == 0);
  state.epoch = 3;
  CATCH_REQUIRE(monitor.judge(2.0, state).stop);
}
