// Which sets are evaluated when, and what becomes of the best weights.
#include <cmath>

#include "loop/host_copy.hpp"
#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using Series = std::vector<std::pair<std::int64_t, double>>;

namespace {

constexpr auto every_step = Interval{1, Interval::Unit::step};

/// The metric `score` is the best, 0, after two updates. At rate 1, ledger's weight is minus the updates.
StepOutput best_at_two(OneWeight& model, const at::Tensor&) {
  return {.loss = model.w, .num_samples = 1, .metrics = {{"score", MeanMetric(std::abs(model.value() + 2), 1)}}};
}

/// Five updates an epoch, evaluated after each.
OneWeightRun<Batches> run_to_five(OneWeightSettings settings = {}) {
  settings.evaluation_set = numbered_batches(1);
  settings.evaluation_step = best_at_two;
  return {numbered_batches(5), ledger, std::move(settings)};
}

TrainConfig watch_score(std::int64_t epochs = 1) {
  return {.epochs = epochs, .evaluate_every = every_step, .monitor = Monitor("validation/score")};
}

}  // namespace

// ---- which sets, and when ----

CATCH_TEST_CASE("a set with an interval of its own is evaluated at that, and all sets once at the end") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(1), ledger,
                   {.evaluation_set = numbered_batches(1), .logger = log.logger(), .rare_set = numbered_batches(1)});
  (void)run.trainer.train({.epochs = 5});
  CATCH_CHECK(log.series("validation/loss") == Series{{1, -1}, {2, -2}, {3, -3}, {4, -4}, {5, -5}});
  CATCH_CHECK(log.series("rare/loss") == Series{{2, -2}, {4, -4}, {5, -5}});
}

CATCH_TEST_CASE("a set due at the end is not evaluated twice for the same update") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(1), ledger,
                   {.evaluation_set = numbered_batches(1), .logger = log.logger(), .rare_set = numbered_batches(1)});
  (void)run.trainer.train({.epochs = 4});
  (void)run.trainer.train({.epochs = 4});
  CATCH_CHECK(log.series("rare/loss") == Series{{2, -2}, {4, -4}});
  CATCH_CHECK(log.series("validation/loss").size() == 4);
}

CATCH_TEST_CASE("an interval for a set that is not there, or of nothing, is refused") {
  Accelerator accelerator({.device = at::kCPU});
  const Batches set = numbered_batches(1);
  const auto make = [&](std::map<std::string, Interval> every) {
    const auto step = [](OneWeight& model, const at::Tensor& batch) { return ledger(model, batch); };
    (void)Evaluator(accelerator, {{"validation", set}}, step, {.every = std::move(every)});
  };
  CATCH_CHECK_THROWS_WITH(make({{"validaton", {}}, {"validation", {.every = 0}}}),
                          Contains("names the set \"validaton\", but the sets are validation") &&
                              Contains("evaluates \"validation\" every 0"));
}

CATCH_TEST_CASE("evaluate_first evaluates once before the run's first update, and is judged") {
  RecordedLog log;
  auto run = run_to_five({.logger = log.logger()});
  auto config = watch_score();
  config.evaluate_first = true;
  config.max_steps = 1;
  const auto state = run.trainer.train(config);
  CATCH_CHECK(log.series("validation/score") == Series{{0, 2}, {1, 1}});
  CATCH_CHECK(state.best_step == 1);

  config.max_steps = 2;
  (void)run.trainer.train(config);
  CATCH_CHECK(log.series("validation/score") == Series{{0, 2}, {1, 1}, {2, 0}});
}

CATCH_TEST_CASE("with evaluate_raw raw weights are evaluated beside the average, and may be watched") {
  RecordedLog log;
  auto run = run_to_five({.ema_decay = 0.5, .logger = log.logger()});
  auto config = watch_score();
  config.evaluate_raw = true;
  config.monitor = Monitor("raw/validation/score");
  const auto state = run.trainer.train(config);
  // The average is -1/2, -5/4, ... while the weight is -1, -2, ...
  CATCH_CHECK(log.series("validation/loss").at(1) == std::pair<std::int64_t, double>(2, -1.25));
  CATCH_CHECK(log.series("raw/validation/loss").at(1) == std::pair<std::int64_t, double>(2, -2));
  CATCH_CHECK(state.best_step == 2);
  CATCH_CHECK(run.trainer.weights(Weights::best).at(0).second.item<double>() == -2);
}

CATCH_TEST_CASE("settings for evaluations that are not made are refused") {
  OneWeightRun bare(numbered_batches(1), ledger);
  CATCH_CHECK_THAT(train_error(bare, {.epochs = 0,
                                      .evaluate_first = true,
                                      .evaluate_raw = true,
                                      .limit_evaluation_batches = 1}),
                   Contains("evaluate_first is set, but there is nothing to evaluate with") &&
                       Contains("evaluate_raw is set, but there") &&
                       Contains("limit_evaluation_batches is set, but there") &&
                       Contains("epochs = 0 is set, but there"));
  auto without_average = run_to_five();
  auto config = watch_score();
  config.evaluate_raw = true;
  CATCH_CHECK_THAT(train_error(without_average, config), Contains("evaluate_raw is set, but without ema_decay"));
  config.evaluate_raw = false;
  config.monitor = Monitor("raw/validation/score");
  CATCH_CHECK_THAT(train_error(without_average, config), Contains("watches \"raw/validation/score\", but raw weights"));
}

CATCH_TEST_CASE("evaluation sets are read up to the limit, by count or by share") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(1), ledger,
                   {.evaluation_set = batches({{4}, {2}, {0}, {9}}),
                    .evaluation_step = [](OneWeight& model, const at::Tensor& batch) -> StepOutput {
                      return {.loss = model.w,
                              .num_samples = 1,
                              .metrics = {{"sum", MeanMetric(batch.sum(), 1)}, {"n", MeanMetric(1.0, 1)}}};
                    },
                    .logger = log.logger()});
  (void)run.trainer.train({.epochs = 1, .limit_evaluation_batches = 2});
  (void)run.trainer.train({.epochs = 2, .limit_evaluation_batches = 0.75});
  (void)run.trainer.train({.epochs = 3});
  CATCH_CHECK(log.series("validation/sum") == Series{{1, 3}, {2, 2}, {3, 3.75}});
  CATCH_CHECK(run.trainer.evaluate().at("validation").at("sum") == 3.75);
}

// ---- limits of training ----

CATCH_TEST_CASE("an epoch ends at limit_train_batches, by count or by share") {
  Tape tape;
  OneWeightRun run(numbered_batches(5), recorded(tape), {.accumulation = 2});
  const auto state = run.trainer.train({.epochs = 2, .limit_train_batches = 3});
  CATCH_CHECK(tape == Tape{0, 1, 2, 0, 1, 2});
  CATCH_CHECK(state.step == 4);
  CATCH_CHECK(state.next_batch == 0);
  CATCH_CHECK(run.trainer.updates_per_epoch() == 3);
  CATCH_CHECK(run.trainer.updates_per_epoch(3) == 2);
  CATCH_CHECK(run.trainer.planned_steps({.epochs = 2, .limit_train_batches = 3}) == 4);
  CATCH_CHECK(run.trainer.planned_steps({.epochs = 2, .limit_train_batches = 0.5}) == 2);

  tape.clear();
  OneWeightRun share(numbered_batches(5), recorded(tape));
  (void)share.trainer.train({.epochs = 1, .limit_train_batches = 0.5});
  CATCH_CHECK(tape == Tape{0, 1});
}

CATCH_TEST_CASE("an epoch of another length cannot be resumed") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(5), ledger);
  (void)first.trainer.train({.epochs = 1, .limit_train_batches = 3}, {.checkpoint_dir = directory.path()});
  OneWeightRun second(numbered_batches(5), ledger);
  CATCH_CHECK_THAT(train_error(second, {.epochs = 2}, {.checkpoint_dir = directory.path(), .resume_from = latest}),
                   Contains("[checkpoint-does-not-fit]") && Contains("data batches"));
}

CATCH_TEST_CASE("max_steps alone ends a run, over as many epochs as it takes") {
  OneWeightRun run(numbered_batches(2), ledger);
  const auto state = run.trainer.train({.max_steps = 5});
  CATCH_CHECK(state.step == 5);
  CATCH_CHECK(state.epoch == 2);
  CATCH_CHECK(state.end == EndReason::max_steps);
  CATCH_CHECK(run.trainer.planned_steps({.max_steps = 5}) == 5);
}

CATCH_TEST_CASE("no epoch at all only evaluates: nothing is trained, judged or written") {
  const TemporaryDirectory directory;
  auto trained = run_to_five();
  (void)trained.trainer.train(watch_score(), {.checkpoint_dir = directory.path()});
  const auto folders = checkpoint_folders(directory.path());

  RecordedLog log;
  auto run = run_to_five({.logger = log.logger(), .test_set = numbered_batches(1)});
  auto config = watch_score(0);
  const auto state = run.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = directory.path() / "last"});
  CATCH_CHECK(log.series("validation/score") == Series{{5, 3}});
  CATCH_CHECK(state.step == 5);
  CATCH_CHECK(state.best_step == 2);
  CATCH_CHECK(state.evaluations_without_improvement == 3);
  CATCH_CHECK(checkpoint_folders(directory.path()) == folders);
  CATCH_CHECK(std::filesystem::is_symlink(directory.path() / "final"));
  CATCH_CHECK(run.trainer.test_results()->at("test").at("score") == 0);  // on the best weights
}

// ---- the best weights ----

CATCH_TEST_CASE("the best weights are kept without any checkpoint, and can be evaluated and exported") {
  const TemporaryDirectory directory;
  auto run = run_to_five();
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)run.trainer.weights(Weights::best); }) == "no-best-weights");
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)run.trainer.evaluate(Weights::best); }) == "no-best-weights");
  (void)run.trainer.train(watch_score());
  CATCH_CHECK(run.w() == -5);
  CATCH_CHECK(run.trainer.weights(Weights::best).at(0).second.item<double>() == -2);
  CATCH_CHECK(run.trainer.evaluate(Weights::best).at("validation").at("score") == 0);
  CATCH_CHECK(run.w() == -5);
  run.trainer.save_model(directory.path() / "best.safetensors", Weights::best);
  CATCH_CHECK(read_safetensors(directory.path() / "best.safetensors").tensors.at(0).second.item<double>() == -2);
}

CATCH_TEST_CASE("the best of averaged weights are the averages of that moment") {
  auto run = run_to_five({.ema_decay = 0.5});
  const auto state = run.trainer.train(watch_score());
  // Averages: -0.5, -1.25, -2.125, -3.0625, -4.03...: the third is nearest to -2.
  CATCH_CHECK(state.best_step == 3);
  CATCH_CHECK(run.trainer.weights(Weights::best).at(0).second.item<double>() == -2.125);
}

CATCH_TEST_CASE("restore_best leaves the best weights in the model until the next call, which goes on from the last") {
  auto run = run_to_five();
  auto config = watch_score();
  config.restore_best = true;
  (void)run.trainer.train(config);
  CATCH_CHECK(run.w() == -2);
  config.epochs = 2;
  config.restore_best = false;
  const auto state = run.trainer.train(config);
  CATCH_CHECK(run.w() == -10);
  CATCH_CHECK(state.best_step == 2);
}

CATCH_TEST_CASE("a stopped run keeps its last weights, whatever is to be restored in the end") {
  StopRequest stop;
  OneWeightRun run(numbered_batches(5),
                   [&](OneWeight& model, const at::Tensor& batch) {
                     if (model.value() == -3) stop.request("test");
                     return ledger(model, batch);
                   },
                   {.evaluation_set = numbered_batches(1), .evaluation_step = best_at_two});
  auto config = watch_score();
  config.restore_best = true;
  (void)run.trainer.train(config, {.stop = &stop});
  CATCH_CHECK(run.w() == -4);
}

CATCH_TEST_CASE("the test set is evaluated once after a normal end, on the best weights") {
  RecordedLog log;
  auto run = run_to_five({.logger = log.logger(), .test_set = numbered_batches(1)});
  CATCH_CHECK_FALSE(run.trainer.test_results());
  (void)run.trainer.train(watch_score());
  CATCH_CHECK(run.trainer.test_results()->at("test").at("score") == 0);
  CATCH_CHECK(log.series("test/score") == Series{{5, 0}});
  CATCH_CHECK(log.count("test") == 1);
  CATCH_CHECK(run.w() == -5);

  auto unwatched = run_to_five({.test_set = numbered_batches(1)});
  (void)unwatched.trainer.train({.epochs = 1});
  CATCH_CHECK(unwatched.trainer.test_results()->at("test").at("score") == 3);
}

CATCH_TEST_CASE("a stopped run is not tested") {
  StopRequest stop;
  stop.request("test");
  auto run = run_to_five({.test_set = numbered_batches(1)});
  (void)run.trainer.train(watch_score(), {.stop = &stop});
  CATCH_CHECK_FALSE(run.trainer.test_results());
}

CATCH_TEST_CASE("every improvement is logged with the best values under their own prefix") {
  RecordedLog log;
  auto run = run_to_five({.logger = log.logger()});
  (void)run.trainer.train(watch_score());
  CATCH_CHECK(log.series("best/validation/score") == Series{{1, 1}, {2, 0}});
}

CATCH_TEST_CASE("a resumed run has the best weights of the run before it") {
  const TemporaryDirectory directory;
  auto first = run_to_five();
  (void)first.trainer.train(watch_score(), {.checkpoint_dir = directory.path()});
  auto second = run_to_five();
  const auto state = second.trainer.train(watch_score(2), {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(state.best_step == 2);
  CATCH_CHECK(second.w() == -10);
  CATCH_CHECK(second.trainer.weights(Weights::best).at(0).second.item<double>() == -2);
}

CATCH_TEST_CASE("best weights that are gone are said and not made up") {
  const TemporaryDirectory directory;
  auto first = run_to_five();
  (void)first.trainer.train(watch_score(), {.checkpoint_dir = directory.path()});
  std::filesystem::remove(directory.path() / "best");
  auto second = run_to_five();
  const auto said = captured_stderr([&] {
    (void)second.trainer.train(watch_score(2), {.checkpoint_dir = directory.path(), .resume_from = latest});
  });
  CATCH_CHECK_THAT(said, Contains("the best weights, of update 2, are not beside the checkpoint"));
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)second.trainer.weights(Weights::best); }) == "no-best-weights");
}

CATCH_TEST_CASE("with another monitor the best and the patience begin anew, in the same process and after a resume") {
  const TemporaryDirectory directory;
  auto first = run_to_five();
  (void)first.trainer.train(watch_score(), {.checkpoint_dir = directory.path()});
  auto config = watch_score(2);
  config.monitor = Monitor("validation/loss");
  TrainState state;
  auto second = run_to_five();
  auto said = captured_stderr([&] {
    state = second.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = latest});
  });
  CATCH_CHECK(state.best_step == 10);
  CATCH_CHECK_THAT(said, Contains("one of validation/score; with validation/loss as the monitor"));

  said = captured_stderr([&] { state = first.trainer.train(config); });
  CATCH_CHECK(state.best_metric == -10);
  CATCH_CHECK_THAT(said, Contains("with validation/loss as the monitor"));
}

CATCH_TEST_CASE("the best and the patience go on over a second call with the same monitor") {
  auto run = run_to_five();
  auto config = watch_score();
  config.monitor = Monitor("validation/score", {.patience = 5});
  CATCH_CHECK(run.trainer.train(config).evaluations_without_improvement == 3);
  config.epochs = 2;
  const auto state = run.trainer.train(config);
  CATCH_CHECK(state.end == EndReason::early_stop);
  CATCH_CHECK(state.step == 7);
  CATCH_CHECK(state.best_step == 2);
}

CATCH_TEST_CASE("values swapped in leave no trace") {
  const at::Tensor a = torch::tensor({1.0, 2.0}), b = torch::tensor({3});
  const NamedTensors live{{"a", a}, {"b", b}};
  HostCopy copy;
  copy.keep(live);
  a.fill_(7);
  b.fill_(7);
  {
    const ValueSwap swap(copy.tensors(), live);
    CATCH_CHECK(a.equal(torch::tensor({1.0, 2.0})));
    CATCH_CHECK(b.item<int>() == 3);
  }
  CATCH_CHECK(a.equal(torch::tensor({7.0, 7.0})));
  CATCH_CHECK(b.item<int>() == 7);
}
