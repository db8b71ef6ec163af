#include "lockstep/hooks/early_stop.hpp"

#include "support/fixtures.hpp"
#include "support/ranks.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr auto every_step = Interval{1, Interval::Unit::step};

EarlyStop early_stop(std::int64_t patience, Direction direction = Direction::minimize) {
  return EarlyStop(Monitor("validation/score", {.direction = direction, .patience = patience}));
}

/// Evaluated after each update; the n-th value is the n-th score.
auto run_of(std::vector<double> scores, Hooks hooks, RunLogger* logger = nullptr) {
  return OneWeightRun(numbered_batches(6), ledger,
                      {.evaluation_set = batches({{0}}),
                       .evaluation_step = script(std::move(scores)),
                       .logger = logger,
                       .hooks = std::move(hooks)});
}

}  // namespace

CATCH_TEST_CASE("a run ends when a metric has not improved for as many evaluations as the patience says") {
  RecordedLog log;
  auto run = run_of({3, 2, 2.5, 2, 1, 1}, early_stop(2), log.logger());
  const auto state = run.trainer.train({.epochs = 1, .evaluate_every = every_step});
  CATCH_CHECK(state.step == 4);
  CATCH_CHECK(state.end == EndReason::early_stop);
  CATCH_CHECK(log.events().back().text == "early_stop: validation/score has not improved for 2 evaluations");
}

CATCH_TEST_CASE("a run that is resumed after the end ends at once as final, and goes on with more patience") {
  const TemporaryDirectory folder;
  const auto train = [&](std::int64_t patience) {
    auto run = run_of({3, 2, 2.5, 2, 1, 1}, early_stop(patience));
    return run.trainer
        .train({.epochs = 1, .evaluate_every = every_step},
               {.checkpoint_dir = folder.path(), .resume_from = latest})
        .step;
  };
  CATCH_CHECK(train(2) == 4);
  CATCH_CHECK(train(2) == 4);
  CATCH_CHECK(std::filesystem::exists(folder.path() / "final"));
  CATCH_CHECK(train(3) == 6);
}

CATCH_TEST_CASE("the patience begins at the start epoch, so that a run has at least so many") {
  OneWeightRun run(numbered_batches(1), ledger,
                   {.evaluation_set = batches({{0}}),
                    .evaluation_step = script({1, 2, 3, 4, 5, 6}),
                    .hooks = EarlyStop(Monitor("validation/score", {.patience = 1, .start_epoch = 4}))});
  CATCH_CHECK(run.trainer.train({.epochs = 6}).epoch == 4);
}

CATCH_TEST_CASE("a patience of no evaluation is refused") {
  CATCH_CHECK(thrown_id<ConfigError>([] { (void)early_stop(0); }) == "invalid-settings");
}

CATCH_TEST_CASE(
    "of two metrics that are watched, each in its direction, the first to run out ends the run") {
  // The loss falls at every update.
  auto run = run_of({1, 2, 3, 3, 3, 3}, {EarlyStop(Monitor("validation/loss", {.patience = 1})),
                                         early_stop(2, Direction::maximize)});
  CATCH_CHECK(run.trainer.train({.epochs = 1, .evaluate_every = every_step}).step == 5);
}

CATCH_TEST_CASE("a run that is resumed has waited as long as before") {
  const TemporaryDirectory folder;
  std::int64_t step = 0;
  for (const std::int64_t until : {3, 6}) {
    auto run = run_of({3, 2, 2.5, 2, 1, 1}, early_stop(2));
    step = run.trainer
               .train({.max_steps = until, .evaluate_every = every_step},
                      {.checkpoint_dir = folder.path(), .resume_from = latest})
               .step;
  }
  CATCH_CHECK(step == 4);
}

CATCH_TEST_CASE("evaluations of other sets do not count, and a metric that its set lacks is an error") {
  OneWeightRun other(
      numbered_batches(4), ledger,
      {.evaluation_set = batches({{0}}), .hooks = EarlyStop(Monitor("rare/loss", {.patience = 1}))});
  CATCH_CHECK(other.trainer.train({.epochs = 1, .evaluate_every = every_step}).step == 4);
  auto missing = run_of({1, 1, 1, 1, 1, 1}, EarlyStop(Monitor("validation/none")));
  CATCH_CHECK(thrown_id<ConfigError>([&] { missing.trainer.train({.epochs = 1}); }) == "unknown-metric");
}

CATCH_TEST_CASE("two ranks end early at the same update") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    OneWeightRun run(numbered_batches(12), ledger,
                     {.evaluation_set = batches({{0}, {0}}),
                      .evaluation_step = script({3, 2, 2.5, 2, 1, 1}),
                      .launch = rank.launch(),
                      .hooks = early_stop(2)});
    return std::to_string(run.trainer.train({.epochs = 1, .evaluate_every = every_step}).step);
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.same_text() == "4");
}
