// Schedules that are made when a run begins.
#include <list>

#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

/// Halves the rate at half of the planned updates.
MultiStepDecay halved(const PlannedRun& run) {
  return {.milestones = {run.planned_steps() / 2}, .gamma = 0.5};
}

std::vector<double> rates(const RecordedLog& log) {
  std::vector<double> values;
  for (const auto& [step, value] : log.series("lr")) values.push_back(value);
  return values;
}

}  // namespace

CATCH_TEST_CASE("a schedule factory is told what the run will do") {
  OneWeightRun run(
      numbered_batches(9), ledger,
      {.accumulation = 2, .evaluation_set = numbered_batches(5), .rare_set = numbered_batches(3)});
  std::vector<PlannedRun> plans;
  run.trainer.set_lr(0.25);
  run.trainer.set_scheduler([&](const PlannedRun& plan) -> Schedule {
    plans.push_back(plan);
    return halved(plan);
  });
  CATCH_CHECK(plans.empty());
  (void)run.trainer.train({.epochs = 3, .limit_train_batches = 7, .limit_evaluation_batches = 4});
  CATCH_REQUIRE(plans.size() == 1);
  const auto& plan = plans.front();
  CATCH_CHECK(plan.epochs == 3);
  CATCH_CHECK(plan.batches == 7);
  CATCH_CHECK(plan.updates_per_epoch() == 4);
  CATCH_CHECK(plan.planned_steps() == 12);
  CATCH_CHECK(plan.evaluation_batches == std::map<std::string, std::int64_t>{{"rare", 3}, {"validation", 4}});
  CATCH_REQUIRE(plan.base_lr.size() == 1);
  CATCH_CHECK(plan.base_lr.begin()->second == 0.25);
  // Six updates at the rate 0.25, six at half of it.
  CATCH_CHECK(run.w() == -(6 * 0.25 + 6 * 0.125));
  (void)run.trainer.train({.epochs = 4, .limit_train_batches = 7});
  CATCH_CHECK(plans.size() == 1);
}

CATCH_TEST_CASE(
    "the schedule counts what the interval beside its factory says, and a later set_scheduler() wins") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(2), ledger, {.logger = log.logger()});
  const auto every_epoch = Interval{.every = 1, .unit = Interval::Unit::epoch};
  run.trainer.set_scheduler([](const PlannedRun&) -> Schedule { return ExponentialDecay{.gamma = 0.5}; },
                            every_epoch);
  (void)run.trainer.train({.epochs = 2, .log_every = 1});
  CATCH_CHECK(rates(log) == std::vector<double>{1, 1, 0.5, 0.5});
  run.trainer.set_scheduler([](const PlannedRun&) -> Schedule { throw std::logic_error("called"); });
  run.trainer.set_scheduler(WarmupDecay{.total_steps = 8, .decay = WarmupDecay::Decay::constant});
  (void)run.trainer.train({.epochs = 3, .log_every = 1});
  CATCH_CHECK(rates(log) == std::vector<double>{1, 1, 0.5, 0.5, 1, 1});
}

CATCH_TEST_CASE(
    "a restored schedule wins over one that was made for the resumed run, unless that is to be kept") {
  const auto final_w = [](std::optional<bool> keep) {
    const TemporaryDirectory directory;
    OneWeightRun first(numbered_batches(4), ledger);
    first.trainer.set_scheduler(halved);
    (void)first.trainer.train({.epochs = 1, .max_steps = 3}, {.checkpoint_dir = directory.path()});
    if (!keep) return first.w();
    OneWeightRun second(numbered_batches(4), ledger);
    second.trainer.set_scheduler(halved);
    const auto said = captured_stderr([&] {
      (void)second.trainer.train(
          {.epochs = 2}, {.checkpoint_dir = directory.path(), .resume_from = latest, .keep_schedule = *keep});
    });
    CATCH_CHECK((said.find("milestones") == std::string::npos) == *keep);
    return second.w();
  };
  // The first run plans 3 updates: one at the rate 1, two at half of it. The second plans 8: half the rate
  // after 4.
  CATCH_CHECK(final_w({}) == -2);
  CATCH_CHECK(final_w(false) == -2 - 5 * 0.5);
  CATCH_CHECK(final_w(true) == -2 - 1 - 4 * 0.5);
}

CATCH_TEST_CASE("a schedule that a factory makes is checked like any other before the run begins") {
  const auto refused = [](ScheduleFactory factory, std::optional<Interval> every = {}) {
    OneWeightRun run(numbered_batches(4), ledger);
    run.trainer.set_scheduler(std::move(factory), every);
    const auto error = train_error(run, {.epochs = 1});
    CATCH_CHECK(run.w() == 0);
    return error;
  };
  CATCH_CHECK_THAT(refused([](const PlannedRun&) -> Schedule { return WarmupDecay{.total_steps = -1}; }),
                   Contains("[invalid-settings]") && Contains("total_steps"));
  CATCH_CHECK_THAT(
      refused([](const PlannedRun&) -> Schedule { return Plateau{.metric = "validation/loss"}; }),
      Contains("[invalid-settings]") && Contains("the schedule"));
  CATCH_CHECK_THAT(refused(halved, Interval{.every = 0}), Contains("[invalid-settings]"));

  OneWeightRun run(numbered_batches(4), ledger);
  CATCH_CHECK(thrown_id<ConfigError>([&] { run.trainer.set_scheduler(ScheduleFactory()); }) ==
              "invalid-settings");
  run.trainer.set_scheduler(halved);
  CATCH_CHECK_THAT(train_error(run, {.epochs = -1}), Contains("epochs"));
  CATCH_CHECK(run.trainer.train({.epochs = 1}).step == 4);
  CATCH_CHECK(run.w() == -(2 + 2 * 0.5));
}

CATCH_TEST_CASE("a source of unknown length plans what max_steps says and no more") {
  struct Stream {
    [[nodiscard]] auto begin() { return all.begin(); }
    [[nodiscard]] auto end() { return all.end(); }
    std::list<at::Tensor> all = {torch::zeros({1}, torch::kDouble), torch::zeros({1}, torch::kDouble)};
  };
  OneWeightRun run(Stream{}, ledger);
  run.trainer.set_scheduler([](const PlannedRun& plan) -> Schedule {
    CATCH_CHECK_FALSE(plan.batches);
    CATCH_CHECK(thrown_id<ConfigError>([&] { (void)plan.updates_per_epoch(); }) == "unknown-length");
    return halved(plan);
  });
  (void)run.trainer.train({.max_steps = 4});
  CATCH_CHECK(run.w() == -(2 + 2 * 0.5));
}
