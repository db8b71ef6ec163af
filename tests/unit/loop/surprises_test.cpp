// What a run says that does not keep what many people want to keep.
#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

std::string said_by(OneWeightSettings settings, const TrainConfig& config, const TrainOptions& options = {}) {
  OneWeightRun run(numbered_batches(2), ledger, std::move(settings));
  return captured_stderr([&] { (void)run.trainer.train(config, options); });
}

}  // namespace

CATCH_TEST_CASE("a run without checkpoints and without a log says once that nothing is kept") {
  OneWeightRun run(numbered_batches(2), ledger);
  const auto said = captured_stderr([&] {
    (void)run.trainer.train({.epochs = 1});
    (void)run.trainer.train({.epochs = 2});
  });
  CATCH_CHECK_THAT(said, Contains("nothing of this run is kept") && Contains("TrainOptions::checkpoint_dir"));
  CATCH_CHECK(std::count(said.begin(), said.end(), '\n') == 1);
}

CATCH_TEST_CASE("a run that is watched but writes no checkpoints says so where it is watched") {
  RecordedLog log;
  CATCH_CHECK_THAT(said_by({.hooks = {HookFunctions{.run_end = [](Run&) {}}}}, {.epochs = 1}),
                   Contains("no checkpoints are written"));
  CATCH_CHECK_THAT(said_by({.logger = log.logger()}, {.epochs = 1}), Contains("no checkpoints are written"));
}

CATCH_TEST_CASE("a run that keeps its checkpoints, wants none or trains nothing has nothing to say") {
  const TemporaryDirectory directory;
  CATCH_CHECK(said_by({}, {.epochs = 1}, {.checkpoint_dir = directory.path()}).empty());
  CATCH_CHECK(said_by({}, {.epochs = 1, .checkpoint_every = {}}).empty());
  CATCH_CHECK(said_by({.evaluation_set = numbered_batches(1)}, {.epochs = 0}).empty());
}
