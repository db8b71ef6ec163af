#include "lockstep/config/interval.hpp"

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using lockstep::test::thrown_id;

CATCH_TEST_CASE("an interval of steps is due after every n-th successful update") {
  const Interval interval{.every = 3, .unit = Interval::Unit::step};
  CATCH_REQUIRE_FALSE(interval.due(2, true, 0, false));
  CATCH_REQUIRE(interval.due(3, true, 0, false));
  CATCH_REQUIRE_FALSE(interval.due(4, true, 0, true));
  CATCH_REQUIRE(interval.due(6, true, 1, true));
}

CATCH_TEST_CASE("a skipped window does not make an interval of steps due a second time") {
  const Interval interval{.every = 3, .unit = Interval::Unit::step};
  CATCH_REQUIRE_FALSE(interval.due(3, false, 0, false));
  CATCH_REQUIRE_FALSE(interval.due(3, false, 1, true));
}

CATCH_TEST_CASE("an interval of epochs is due at the end of every n-th epoch, updated or not") {
  const Interval interval{.every = 2, .unit = Interval::Unit::epoch};
  CATCH_REQUIRE_FALSE(interval.due(10, true, 1, true));
  CATCH_REQUIRE_FALSE(interval.due(15, true, 2, false));
  CATCH_REQUIRE(interval.due(20, true, 2, true));
  CATCH_REQUIRE(interval.due(20, false, 2, true));
}

CATCH_TEST_CASE("nothing is due at count 0") {
  CATCH_REQUIRE_FALSE(Interval{.every = 1, .unit = Interval::Unit::step}.due(0, true, 1, true));
  CATCH_REQUIRE_FALSE(Interval{.every = 1, .unit = Interval::Unit::epoch}.due(5, true, 0, true));
}

CATCH_TEST_CASE("an interval is read from its text and written as it") {
  const auto [text, every, unit, written] = GENERATE(table<const char*, int, Interval::Unit, const char*>({
      {"50", 50, Interval::Unit::step, "50 steps"},
      {"50 steps", 50, Interval::Unit::step, "50 steps"},
      {"1 step", 1, Interval::Unit::step, "1 step"},
      {"1 epoch", 1, Interval::Unit::epoch, "1 epoch"},
      {"2 epochs", 2, Interval::Unit::epoch, "2 epochs"},
      {"1 second", 1, Interval::Unit::second, "1 second"},
      {"30 seconds", 30, Interval::Unit::second, "30 seconds"},
      {"failure every 86400 seconds", 86400, Interval::Unit::young_daly, "failure every 86400 seconds"},
  }));
  const Interval interval = Interval::parse(text);
  CATCH_CHECK(interval.every == every);
  CATCH_CHECK(interval.unit == unit);
  CATCH_CHECK(to_string(interval) == written);
}

CATCH_TEST_CASE("a text that is not an interval is refused") {
  const char* text = GENERATE("", "epoch", "0 steps", "-1 epoch", "1.5 epochs", "2 days", "1  epoch",
                              "1 epoch ", "99999999999999999999", "1 secondss", "30seconds", "failure every 3 steps",
                              "failure every 3", "failure every 0 seconds");
  CATCH_CAPTURE(text);
  CATCH_REQUIRE(thrown_id<ConfigError>([&] { (void)Interval::parse(text); }) == "invalid-interval");
}

CATCH_TEST_CASE("an interval in time is due by no count") {
  const Interval seconds{.every = 1, .unit = Interval::Unit::second};
  CATCH_CHECK(seconds.timed());
  CATCH_CHECK_FALSE(seconds.due(1, true, 1, true));
  const auto young_daly = Interval::young_daly(std::chrono::hours(2));
  CATCH_CHECK(young_daly == Interval{7200, Interval::Unit::young_daly});
  CATCH_CHECK(young_daly.timed());
  CATCH_CHECK_FALSE(young_daly.due(7200, true, 7200, true));
  CATCH_CHECK_FALSE(Interval{.every = 1, .unit = Interval::Unit::step}.timed());
}
