#include "lockstep/hooks/time_limit.hpp"

#include <thread>

#include "support/fixtures.hpp"
#include "support/ranks.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using namespace std::chrono_literals;

CATCH_TEST_CASE(
    "a run stops at the first update after its time, saved, and a resume has the whole time again") {
  const TemporaryDirectory folder;
  for (const std::int64_t step : {1, 2}) {
    OneWeightRun run(numbered_batches(4), ledger, {.hooks = TimeLimit(1ns)});
    const auto state =
        run.trainer.train({.epochs = 1}, {.checkpoint_dir = folder.path(), .resume_from = latest});
    CATCH_CHECK(state.step == step);
    CATCH_CHECK(state.end == EndReason::stop_request);
    CATCH_CHECK(std::filesystem::exists(folder.path() / "last"));
  }
}

CATCH_TEST_CASE("the time counts from the beginning of a call, and a run within it is not stopped") {
  TimeLimit limit(1h);
  std::this_thread::sleep_for(1ms);
  OneWeightRun run(numbered_batches(4), ledger, {.hooks = {limit}});
  CATCH_CHECK(run.trainer.train({.epochs = 1}).step == 4);
}

CATCH_TEST_CASE("a limit of no time is refused") {
  CATCH_CHECK(thrown_id<ConfigError>([] { TimeLimit limit(0s); }) == "invalid-settings");
}

CATCH_TEST_CASE("one rank whose time is over stops all at the same update") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    OneWeightRun run(numbered_batches(12), ledger,
                     {.launch = rank.launch(), .hooks = TimeLimit(rank.number == 1 ? 1ns : 3'600s)});
    const auto state = run.trainer.train({.epochs = 1});
    return std::to_string(state.step) + " " + state.stop_reason.value_or("");
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.same_text() == "1 the time limit of 0:00 is reached");
}
