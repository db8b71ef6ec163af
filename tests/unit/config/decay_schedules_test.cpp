#include "lockstep/config/decay_schedules.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "support/catch.hpp"

using namespace lockstep;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

bool near(double a, double b) { return std::abs(a - b) < 1e-15; }

/// Is there one mistake, and does its sentence begin with this field?
bool only_problem(const std::vector<std::string>& found, const std::string& field) {
  return found.size() == 1 && found.front().rfind(field + " is ", 0) == 0;
}

}  // namespace

// Values of Torch's own schedulers are compared in schedule_test; here stands what can be worked out by hand.

CATCH_TEST_CASE("a step falls at its milestone, not before") {
  const MultiStepDecay schedule{.milestones = {2, 5}, .gamma = 0.5};
  CATCH_REQUIRE(schedule.factor(1) == 1.0);
  CATCH_REQUIRE(schedule.factor(2) == 0.5);
  CATCH_REQUIRE(schedule.factor(4) == 0.5);
  CATCH_REQUIRE(schedule.factor(5) == 0.25);
}

CATCH_TEST_CASE("an exponential decay multiplies by gamma each time") {
  CATCH_REQUIRE(ExponentialDecay{0.5}.factor(0) == 1.0);
  CATCH_REQUIRE(ExponentialDecay{0.5}.factor(10) == 1.0 / 1024);
}

CATCH_TEST_CASE("a polynomial ends at its minimum and stays there") {
  const PolynomialDecay square{.total_steps = 4, .power = 2, .minimum_factor = 0.5};
  CATCH_REQUIRE(square.factor(0) == 1.0);
  CATCH_REQUIRE(square.factor(2) == 0.625);
  CATCH_REQUIRE(square.factor(4) == 0.5);
  CATCH_REQUIRE(square.factor(400) == 0.5);
}

CATCH_TEST_CASE("the inverse square root meets its warm-up at 1") {
  const InverseSqrtDecay schedule{.warmup_steps = 4, .start_factor = 0.5};
  CATCH_REQUIRE(schedule.factor(0) == 0.5);
  CATCH_REQUIRE(schedule.factor(2) == 0.75);
  CATCH_REQUIRE(schedule.factor(4) == 1.0);
  CATCH_REQUIRE(schedule.factor(16) == 0.5);
}

CATCH_TEST_CASE("each period of cosine restarts begins at 1 and is longer than the last") {
  const CosineRestarts schedule{.period = 2, .period_multiplier = 2, .minimum_factor = 0.2};
  for (const std::int64_t start : {0, 2, 6, 14}) CATCH_REQUIRE(schedule.factor(start) == 1.0);
  CATCH_REQUIRE(near(schedule.factor(1), 0.6));
  CATCH_REQUIRE(near(schedule.factor(4), 0.6));
  CATCH_REQUIRE(near(schedule.factor(10), 0.6));
}

CATCH_TEST_CASE("periods that outgrow the range of integers are no trouble") {
  const CosineRestarts schedule{.period = 3, .period_multiplier = std::numeric_limits<std::int64_t>::max()};
  CATCH_REQUIRE(schedule.factor(3) == 1.0);
  CATCH_REQUIRE(near(schedule.factor(1000), 1.0));
}

CATCH_TEST_CASE("one cycle rises to 1, ends at its minimum with the last step, and stays there") {
  const OneCycle cycle{.total_steps = 11,
                       .warmup_fraction = 5.0 / 11,
                       .start_factor = 0.2,
                       .minimum_factor = 0.02,
                       .anneal = OneCycle::Anneal::linear};
  CATCH_REQUIRE(cycle.factor(0) == 0.2);
  CATCH_REQUIRE(near(cycle.factor(2), 0.6));
  CATCH_REQUIRE(near(cycle.factor(4), 1.0));
  CATCH_REQUIRE(near(cycle.factor(7), 0.51));
  CATCH_REQUIRE(cycle.factor(10) == 0.02);
  CATCH_REQUIRE(cycle.factor(100) == 0.02);
}

CATCH_TEST_CASE("the stable phase is flat up to the decay, whose shape is chosen") {
  using enum WarmupStableDecay::Decay;
  WarmupStableDecay schedule{.total_steps = 20, .warmup_steps = 4, .decay_steps = 8, .minimum_factor = 0.2};
  CATCH_REQUIRE(schedule.factor(2) == 0.5);
  for (const std::int64_t flat : {4, 8, 12}) CATCH_REQUIRE(schedule.factor(flat) == 1.0);
  CATCH_REQUIRE(near(schedule.factor(14), 0.2 + 0.8 * 0.75));
  schedule.decay = cosine;
  CATCH_REQUIRE(near(schedule.factor(16), 0.2 + 0.8 * 0.5));
  schedule.decay = one_minus_sqrt;
  CATCH_REQUIRE(near(schedule.factor(14), 0.2 + 0.8 * 0.5));
  CATCH_REQUIRE(schedule.factor(20) == 0.2);
}

CATCH_TEST_CASE("sound settings have no problems") {
  CATCH_REQUIRE(problems(MultiStepDecay{.milestones = {1, 2}}).empty());
  CATCH_REQUIRE(problems(ExponentialDecay{1}).empty());
  CATCH_REQUIRE(problems(PolynomialDecay{.total_steps = 1}).empty());
  CATCH_REQUIRE(problems(InverseSqrtDecay{.warmup_steps = 1}).empty());
  CATCH_REQUIRE(problems(CosineRestarts{.period = 1}).empty());
  CATCH_REQUIRE(problems(OneCycle{.total_steps = 4}).empty());
  CATCH_REQUIRE(problems(OneCycle{.total_steps = 4, .warmup_fraction = 0.5, .three_phase = true}).empty());
  CATCH_REQUIRE(problems(WarmupStableDecay{.total_steps = 2, .warmup_steps = 1, .decay_steps = 1}).empty());
}

CATCH_TEST_CASE("each mistake is named by type and field") {
  CATCH_REQUIRE(only_problem(problems(MultiStepDecay{}), "MultiStepDecay.milestones"));
  CATCH_REQUIRE(only_problem(problems(MultiStepDecay{.milestones = {0, 1}}), "MultiStepDecay.milestones"));
  CATCH_REQUIRE(only_problem(problems(MultiStepDecay{.milestones = {3, 3}}), "MultiStepDecay.milestones"));
  CATCH_REQUIRE(
      only_problem(problems(MultiStepDecay{.milestones = {3}, .gamma = 0}), "MultiStepDecay.gamma"));
  CATCH_REQUIRE(only_problem(problems(ExponentialDecay{}), "ExponentialDecay.gamma"));
  CATCH_REQUIRE(only_problem(problems(ExponentialDecay{1.1}), "ExponentialDecay.gamma"));
  CATCH_REQUIRE(only_problem(problems(PolynomialDecay{}), "PolynomialDecay.total_steps"));
  CATCH_REQUIRE(only_problem(problems(PolynomialDecay{.total_steps = 1, .power = not_a_number}),
                             "PolynomialDecay.power"));
  CATCH_REQUIRE(only_problem(problems(PolynomialDecay{.total_steps = 1, .minimum_factor = -1}),
                             "PolynomialDecay.minimum_factor"));
  CATCH_REQUIRE(only_problem(problems(InverseSqrtDecay{}), "InverseSqrtDecay.warmup_steps"));
  CATCH_REQUIRE(only_problem(problems(InverseSqrtDecay{1, 2}), "InverseSqrtDecay.start_factor"));
  CATCH_REQUIRE(only_problem(problems(CosineRestarts{}), "CosineRestarts.period"));
  CATCH_REQUIRE(only_problem(problems(CosineRestarts{1, 0}), "CosineRestarts.period_multiplier"));
  CATCH_REQUIRE(only_problem(problems(CosineRestarts{1, 1, not_a_number}), "CosineRestarts.minimum_factor"));
  CATCH_REQUIRE(only_problem(problems(OneCycle{}), "OneCycle.total_steps"));
  CATCH_REQUIRE(only_problem(problems(OneCycle{.total_steps = 3}), "OneCycle.warmup_fraction"));
  CATCH_REQUIRE(
      only_problem(problems(OneCycle{.total_steps = 9, .warmup_fraction = 1}), "OneCycle.warmup_fraction"));
  CATCH_REQUIRE(
      only_problem(problems(OneCycle{.total_steps = 9, .warmup_fraction = 0.6, .three_phase = true}),
                   "OneCycle.warmup_fraction"));
  CATCH_REQUIRE(
      only_problem(problems(OneCycle{.total_steps = 9, .start_factor = 2}), "OneCycle.start_factor"));
  CATCH_REQUIRE(only_problem(problems(WarmupStableDecay{.total_steps = 5}), "WarmupStableDecay.decay_steps"));
  CATCH_REQUIRE(
      only_problem(problems(WarmupStableDecay{.total_steps = 5, .warmup_steps = 3, .decay_steps = 3}),
                   "WarmupStableDecay.warmup_steps"));
  CATCH_REQUIRE(
      only_problem(problems(WarmupStableDecay{.total_steps = 5, .decay_steps = 3, .start_factor = 0.1}),
                   "WarmupStableDecay.start_factor"));
}
