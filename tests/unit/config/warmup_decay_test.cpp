#include "lockstep/config/warmup_decay.hpp"

#include <cmath>
#include <limits>
#include <string>

#include "support/catch.hpp"

using namespace lockstep;
using Decay = WarmupDecay::Decay;

CATCH_TEST_CASE("the warm-up is a line from start_factor to 1") {
  const WarmupDecay schedule{
      .total_steps = 20, .warmup_steps = 4, .start_factor = 0.5, .decay = Decay::constant};
  CATCH_REQUIRE(schedule.factor(0) == 0.5);
  CATCH_REQUIRE(schedule.factor(1) == 0.625);
  CATCH_REQUIRE(schedule.factor(3) == 0.875);
  CATCH_REQUIRE(schedule.factor(4) == 1.0);
}

CATCH_TEST_CASE("without warm-up the factor starts at exactly 1") {
  const auto decay = GENERATE(Decay::cosine, Decay::linear, Decay::constant);
  const double minimum = decay == Decay::constant ? 0.0 : 0.1;
  CATCH_REQUIRE(WarmupDecay{.total_steps = 10, .minimum_factor = minimum, .decay = decay}.factor(0) == 1.0);
}

CATCH_TEST_CASE("the linear decay runs over the updates after the warm-up") {
  const WarmupDecay schedule{
      .total_steps = 10, .warmup_steps = 2, .minimum_factor = 0.5, .decay = Decay::linear};
  CATCH_REQUIRE(schedule.factor(2) == 1.0);
  CATCH_REQUIRE(schedule.factor(4) == 0.875);
  CATCH_REQUIRE(schedule.factor(6) == 0.75);
  CATCH_REQUIRE(schedule.factor(10) == 0.5);
}

// cos(60 deg) = 1/2, cos(90 deg) = 0, cos(120 deg) = -1/2.
CATCH_TEST_CASE("the cosine decay passes through the values of the cosine") {
  const WarmupDecay schedule{.total_steps = 16, .warmup_steps = 4, .minimum_factor = 0.2};
  CATCH_REQUIRE(schedule.factor(4) == 1.0);
  CATCH_REQUIRE(std::abs(schedule.factor(8) - (0.2 + 0.8 * 0.75)) < 1e-15);
  CATCH_REQUIRE(std::abs(schedule.factor(10) - (0.2 + 0.8 * 0.5)) < 1e-15);
  CATCH_REQUIRE(std::abs(schedule.factor(12) - (0.2 + 0.8 * 0.25)) < 1e-15);
  CATCH_REQUIRE(schedule.factor(16) == 0.2);
}

CATCH_TEST_CASE("the factor stays where it is after the last planned update") {
  CATCH_REQUIRE(WarmupDecay{.total_steps = 5, .minimum_factor = 0.3}.factor(1000) == 0.3);
  CATCH_REQUIRE(WarmupDecay{.total_steps = 5, .minimum_factor = 0.3, .decay = Decay::linear}.factor(6) ==
                0.3);
  CATCH_REQUIRE(WarmupDecay{.total_steps = 5, .decay = Decay::constant}.factor(1000) == 1.0);
}

CATCH_TEST_CASE("a sound schedule has no problems") {
  CATCH_REQUIRE(problems(WarmupDecay{.total_steps = 1}).empty());
  CATCH_REQUIRE(
      problems(
          WarmupDecay{.total_steps = 100, .warmup_steps = 99, .start_factor = 0.1, .minimum_factor = 0.01})
          .empty());
}

CATCH_TEST_CASE("every mistake in a schedule is named by its field") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto [schedule, field] = GENERATE_REF(table<WarmupDecay, const char*>({
      {WarmupDecay{}, "total_steps"},
      {WarmupDecay{.total_steps = 5, .warmup_steps = -1}, "warmup_steps"},
      {WarmupDecay{.total_steps = 5, .warmup_steps = 5}, "warmup_steps"},
      {WarmupDecay{.total_steps = 5, .warmup_steps = 1, .start_factor = 1.5}, "start_factor"},
      {WarmupDecay{.total_steps = 5, .minimum_factor = nan}, "minimum_factor"},
      {WarmupDecay{.total_steps = 5, .start_factor = 0.1}, "start_factor"},
      {WarmupDecay{.total_steps = 5, .minimum_factor = 0.1, .decay = Decay::constant}, "minimum_factor"},
  }));
  const auto found = problems(schedule);
  CATCH_REQUIRE(found.size() == 1);
  CATCH_REQUIRE(found.front().rfind(std::string("WarmupDecay.") + field, 0) == 0);
}
