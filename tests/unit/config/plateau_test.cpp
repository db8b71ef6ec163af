#include "lockstep/config/plateau.hpp"

#include <limits>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace lockstep;

namespace {

PlateauState after(const Plateau& plateau, const std::vector<double>& values) {
  PlateauState state;
  for (const double value : values) state = plateau.observe(value, state);
  return state;
}

}  // namespace

// Whole courses of Torch's ReduceLROnPlateau are compared in schedule_test.

CATCH_TEST_CASE("the rate falls with the evaluation after patience has run out") {
  const Plateau plateau{.factor = 0.5, .patience = 2};
  CATCH_REQUIRE(after(plateau, {1, 1, 1}) == PlateauState{.factor = 1, .best = 1.0, .bad_evaluations = 2});
  CATCH_REQUIRE(after(plateau, {1, 1, 1, 1}) == PlateauState{.factor = 0.5, .best = 1.0});
  CATCH_REQUIRE(after(plateau, {1, 1, 1, 0.5, 1, 1}).factor == 1.0);
}

CATCH_TEST_CASE("evaluations of a cooldown do not count against the patience") {
  const Plateau plateau{.factor = 0.5, .patience = 0, .cooldown = 2};
  CATCH_REQUIRE(after(plateau, {1, 1}) == PlateauState{.factor = 0.5, .best = 1.0, .cooldown_left = 2});
  CATCH_REQUIRE(after(plateau, {1, 1, 1, 1}).factor == 0.5);
  CATCH_REQUIRE(after(plateau, {1, 1, 1, 1, 1}).factor == 0.25);
}

CATCH_TEST_CASE("the factor never falls below its minimum") {
  const Plateau plateau{.factor = 0.5, .patience = 0, .minimum_factor = 0.4};
  CATCH_REQUIRE(after(plateau, {1, 1, 1, 1, 1}).factor == 0.4);
}

CATCH_TEST_CASE("an improvement is larger than the threshold, in the chosen direction and mode") {
  using enum Plateau::ThresholdMode;
  const auto improved = [](const Plateau& plateau, double best, double value) {
    return after(plateau, {best, value}).best == value;
  };
  CATCH_REQUIRE_FALSE(improved({.threshold = 0.25, .threshold_mode = relative}, 4, 3));
  CATCH_REQUIRE(improved({.threshold = 0.25, .threshold_mode = relative}, 4, 2.5));
  CATCH_REQUIRE_FALSE(improved({.threshold = 2, .threshold_mode = absolute}, 4, 2));
  CATCH_REQUIRE(improved({.threshold = 2, .threshold_mode = absolute}, 4, 1.5));
  const auto upwards = Direction::maximize;
  CATCH_REQUIRE_FALSE(improved({.direction = upwards, .threshold = 0.25, .threshold_mode = relative}, 4, 5));
  CATCH_REQUIRE(improved({.direction = upwards, .threshold = 0.25, .threshold_mode = relative}, 4, 5.5));
  CATCH_REQUIRE_FALSE(improved({.direction = upwards, .threshold = 1, .threshold_mode = absolute}, 4, 5));
  CATCH_REQUIRE(improved({.direction = upwards, .threshold = 1, .threshold_mode = absolute}, 4, 5.5));
}

CATCH_TEST_CASE("a value that is not finite is never the best") {
  using Limits = std::numeric_limits<double>;
  const double value = GENERATE(Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN());
  const Plateau plateau{.direction = GENERATE(Direction::minimize, Direction::maximize), .patience = 2};
  CATCH_REQUIRE(after(plateau, {value}) == PlateauState{.bad_evaluations = 1});
  CATCH_REQUIRE(after(plateau, {value, 1.0}).best == 1.0);
}

CATCH_TEST_CASE("every mistake in a plateau is named by its field") {
  CATCH_REQUIRE(problems(Plateau{}).empty());
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto [plateau, field] = GENERATE_REF(table<Plateau, const char*>({
      {Plateau{.metric = "loss"}, "metric"},
      {Plateau{.factor = 1}, "factor"},
      {Plateau{.factor = nan}, "factor"},
      {Plateau{.patience = -1}, "patience"},
      {Plateau{.threshold = -0.1}, "threshold"},
      {Plateau{.cooldown = -1}, "cooldown"},
      {Plateau{.minimum_factor = 1}, "minimum_factor"},
  }));
  const auto found = problems(plateau);
  CATCH_REQUIRE(found.size() == 1);
  CATCH_REQUIRE(found.front().rfind(std::string("Plateau.") + field + " is ", 0) == 0);
}
