#include "lockstep/config/planned_run.hpp"

#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;

CATCH_TEST_CASE("a planned run gives what is known, and says so when it is not") {
  const PlannedRun known{.known_updates_per_epoch = 4, .known_planned_steps = 10};
  CATCH_CHECK(known.updates_per_epoch() == 4);
  CATCH_CHECK(known.planned_steps() == 10);
  const PlannedRun unknown;
  CATCH_CHECK(test::thrown_id<ConfigError>([&] { (void)unknown.updates_per_epoch(); }) == "unknown-length");
  CATCH_CHECK(test::thrown_id<ConfigError>([&] { (void)unknown.planned_steps(); }) == "unknown-length");
}
