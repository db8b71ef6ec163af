#include "loop/save_timer.hpp"

#include "support/catch.hpp"
#include "support/hand_clock.hpp"

using namespace lockstep;
using lockstep::test::HandClock;

CATCH_TEST_CASE("a save is due when so many seconds have passed since the last one was over") {
  HandClock clock;
  SaveTimer timer(Interval{30, Interval::Unit::second});
  clock.pass(29.5);
  CATCH_CHECK_FALSE(timer.due());
  clock.pass(0.5);
  CATCH_CHECK(timer.due());
  const auto begin = save_clock();
  clock.pass(7);
  timer.saved(begin);
  clock.pass(29);
  CATCH_CHECK_FALSE(timer.due());
  clock.pass(1);
  CATCH_CHECK(timer.due());
  timer.skipped();
  CATCH_CHECK_FALSE(timer.due());
  clock.pass(30);
  CATCH_CHECK(timer.due());
}

CATCH_TEST_CASE("the interval of Young and Daly is the root of twice the stall times the time between failures") {
  HandClock clock;
  SaveTimer timer(Interval::young_daly(std::chrono::hours(1)));
  const auto save = [&](double stall) {
    const auto begin = save_clock();
    clock.pass(stall);
    timer.saved(begin);
  };
  CATCH_CHECK(timer.due());  // at once, to measure
  save(2);
  clock.pass(119);  // sqrt(2 * 2 * 3600) = 120
  CATCH_CHECK_FALSE(timer.due());
  clock.pass(1);
  CATCH_CHECK(timer.due());

  save(0.25);  // the first one, with fresh memory, counts no longer
  save(0.75);
  clock.pass(59);  // sqrt(2 * 0.5 * 3600) = 60
  CATCH_CHECK_FALSE(timer.due());
  clock.pass(1);
  CATCH_CHECK(timer.due());
}

CATCH_TEST_CASE("an interval that counts something else than time is never due by the clock") {
  HandClock clock;
  const SaveTimer steps(Interval{1, Interval::Unit::step});
  const SaveTimer none({});
  clock.pass(1e6);
  CATCH_CHECK_FALSE(steps.due());
  CATCH_CHECK_FALSE(none.due());
}
