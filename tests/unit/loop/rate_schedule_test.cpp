// How schedules drive the learning rates of a run.
#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

constexpr auto step_unit = Interval::Unit::step;
constexpr auto every_step = Interval{1, step_unit};
constexpr auto every_epoch = Interval{1, Interval::Unit::epoch};

/// The rates of the updates that a run logged.
std::vector<double> rates(const RecordedLog& log) {
  std::vector<double> result;
  for (const auto& [step, rate] : log.series("lr")) result.push_back(rate);
  return result;
}

TrainConfig logged(std::int64_t epochs) { return {.epochs = epochs, .log_every = 1}; }

/// Halves the rate at counts 1 and 3.
const MultiStepDecay halves{.milestones = {1, 3}, .gamma = 0.5};

/// One update an epoch, whose evaluation scores 5 whatever happens.
OneWeightRun<Batches> flat_run(RecordedLog& log) {
  return {numbered_batches(1), ledger,
          {.evaluation_set = numbered_batches(1),
           .evaluation_step = [](OneWeight& model, const at::Tensor&) -> StepOutput {
             return {.loss = model.w, .num_samples = 1, .metrics = {{"score", MeanMetric(5.0, 1)}}};
           },
           .logger = log.logger()}};
}

const Plateau falls_at_once{.metric = "validation/score", .factor = 0.5, .patience = 0};

}  // namespace

CATCH_TEST_CASE("a schedule counts completed updates, or epochs, or every n-th of them") {
  const auto of = [](std::optional<Interval> every) {
    RecordedLog log;
    OneWeightRun run(numbered_batches(2), ledger, {.logger = log.logger()});
    run.trainer.set_scheduler(halves, every);
    (void)run.trainer.train(logged(4));
    return rates(log);
  };
  CATCH_CHECK(of(std::nullopt) == std::vector<double>{1, .5, .5, .25, .25, .25, .25, .25});
  CATCH_CHECK(of(every_epoch) == std::vector<double>{1, 1, .5, .5, .5, .5, .25, .25});
  CATCH_CHECK(of(Interval{2, step_unit}) == of(every_epoch));
  CATCH_CHECK(of(Interval{2, Interval::Unit::epoch}) == std::vector<double>{1, 1, 1, 1, .5, .5, .5, .5});
}

CATCH_TEST_CASE("a plateau lowers the rate after the evaluation that showed it") {
  RecordedLog log;
  auto run = flat_run(log);
  run.trainer.set_scheduler(falls_at_once);
  (void)run.trainer.train(logged(4));
  // The first value is the best; every other one is no improvement.
  CATCH_CHECK(rates(log) == std::vector<double>{1, 1, .5, .25});
}

CATCH_TEST_CASE("a plateau follows nothing but its own set, and its state survives an interruption") {
  const TemporaryDirectory directory;
  RecordedLog first_log, second_log;
  auto first = flat_run(first_log);
  first.trainer.set_scheduler(falls_at_once);
  (void)first.trainer.train(logged(2), {.checkpoint_dir = directory.path()});
  auto second = flat_run(second_log);
  second.trainer.set_scheduler(falls_at_once);
  (void)second.trainer.train(logged(4), {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(rates(second_log) == std::vector<double>{.5, .25});
}

CATCH_TEST_CASE("a plateau that can never get a value is refused, with the names that could be meant") {
  RecordedLog log;
  auto run = flat_run(log);
  run.trainer.set_scheduler(Plateau{.metric = "valid/score"});
  CATCH_CHECK_THAT(train_error(run, logged(1)),
                   Contains("[invalid-settings]") &&
                       Contains("the schedule watches \"valid/score\", but the evaluation sets are validation"));
  run.trainer.set_scheduler(Plateau{.metric = "validation/accuracy"});
  CATCH_CHECK_THAT(train_error(run, logged(1)), Contains("[unknown-metric]") &&
                                                    Contains("reports validation/loss, validation/score"));
  OneWeightRun bare(numbered_batches(1), ledger);
  bare.trainer.set_scheduler(Plateau{});
  CATCH_CHECK_THAT(train_error(bare, logged(1)), Contains("the schedule watches \"validation/loss\", but nothing"));
}

CATCH_TEST_CASE("an interval that cannot be followed is refused") {
  OneWeightRun run(numbered_batches(1), ledger);
  CATCH_CHECK_THROWS_WITH(run.trainer.set_scheduler(Plateau{}, every_epoch), Contains("a Plateau follows evaluations"));
  CATCH_CHECK_THROWS_WITH(run.trainer.set_scheduler(halves, Interval{0, step_unit}), Contains("is every 0"));
}

CATCH_TEST_CASE("on resume the saved schedule and its interval go on, and another one is said or kept on request") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(2), ledger);
  first.trainer.set_scheduler(halves, every_epoch);
  (void)first.trainer.train(logged(2), {.checkpoint_dir = directory.path()});

  const auto resumed = [&](auto&& set, TrainOptions options) {
    RecordedLog log;
    OneWeightRun run(numbered_batches(2), ledger, {.logger = log.logger()});
    set(run.trainer);
    options.resume_from = directory.path() / "step-00000004";
    (void)run.trainer.train(logged(4), options);
    return rates(log);
  };
  const std::vector<double> uninterrupted{.5, .5, .25, .25};
  CATCH_CHECK(resumed([](auto& trainer) { trainer.set_scheduler(halves, every_epoch); }, {}) == uninterrupted);
  CATCH_CHECK(resumed([](auto&) {}, {}) == uninterrupted);
  const auto exponential = [](auto& trainer) { trainer.set_scheduler(ExponentialDecay{.gamma = 0.5}); };
  CATCH_CHECK(resumed(exponential, {}) == uninterrupted);
  CATCH_CHECK(resumed(exponential, {.keep_schedule = true}) ==
              std::vector<double>{1. / 16, 1. / 32, 1. / 64, 1. / 128});
}

CATCH_TEST_CASE("a function is taken from the program again, and without it the checkpoint does not fit") {
  const TemporaryDirectory directory;
  const LambdaSchedule third{.name = "third", .function = [](std::int64_t n) { return n < 1 ? 1.0 : 0.25; }};
  OneWeightRun first(numbered_batches(1), ledger);
  first.trainer.set_scheduler(third);
  (void)first.trainer.train(logged(1), {.checkpoint_dir = directory.path()});

  RecordedLog log;
  OneWeightRun second(numbered_batches(1), ledger, {.logger = log.logger()});
  second.trainer.set_scheduler(third);
  (void)second.trainer.train(logged(2), {.resume_from = directory.path() / "last"});
  CATCH_CHECK(rates(log) == std::vector<double>{.25});

  OneWeightRun without(numbered_batches(1), ledger);
  CATCH_CHECK_THAT(train_error(without, logged(2), {.resume_from = directory.path() / "last"}),
                   Contains("[checkpoint-does-not-fit]") && Contains("third"));
}

CATCH_TEST_CASE("Torch's StepLR drives the rates itself, which is said, and set_lr goes on from the new rate") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(2), ledger, {.logger = log.logger()});
  torch::optim::StepLR half(run.optimizer, 1, 0.5);
  const auto said = captured_stderr([&] { run.trainer.set_scheduler(half, every_epoch); });
  (void)run.trainer.train(logged(2));
  run.trainer.set_lr(3);
  (void)run.trainer.train(logged(4));
  // The first step() of LibTorch's StepLR changes nothing, unlike that of Python's.
  CATCH_CHECK(rates(log) == std::vector<double>{1, 1, 1, 1, 3, 3, 1.5, 1.5});
  OneWeightRun other(numbered_batches(2), ledger);
  torch::optim::StepLR unlogged(other.optimizer, 1, 0.5);
  CATCH_CHECK_THAT(captured_stderr([&] { other.trainer.set_scheduler(unlogged); }),
                   Contains("the state of Torch's own schedules is private"));
}

CATCH_TEST_CASE("Torch's ReduceLROnPlateau takes the metric's value after each evaluation") {
  RecordedLog log;
  auto run = flat_run(log);
  torch::optim::ReduceLROnPlateauScheduler plateau(run.optimizer, torch::optim::ReduceLROnPlateauScheduler::min, 0.5f,
                                                   /*patience=*/0);
  run.trainer.set_scheduler(plateau, "validation/score");
  (void)run.trainer.train(logged(4));
  CATCH_CHECK(rates(log) == std::vector<double>{1, 1, .5, .25});
}
