#include "lockstep/hooks/throughput.hpp"

#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

CATCH_TEST_CASE("every so many updates a line says how fast the run is and what memory it holds") {
  OneWeightRun run(numbered_batches(5), ledger, {.hooks = Throughput(2)});
  const auto lines = captured_stderr([&] { run.trainer.train({.epochs = 1, .checkpoint_every = {}}); });
  for (const auto* step : {"step 2  ", "step 4  "}) CATCH_CHECK_THAT(lines, Contains(step));
  for (const auto* step : {"step 1  ", "step 3  ", "step 5  "}) CATCH_CHECK_THAT(lines, !Contains(step));
  CATCH_CHECK_THAT(lines, Contains(" updates/s  ") || Contains(" samples/s  "));
  CATCH_CHECK_THAT(lines, Contains(" MiB\n"));
  CATCH_CHECK(thrown_id<ConfigError>([] { Throughput hook(0); }) == "invalid-settings");
}
