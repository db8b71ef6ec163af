// What the Trainer records at the end of each epoch.
#include <cmath>

#include "lockstep/loop/trainer.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Values = std::vector<std::pair<std::string, double>>;

namespace {

/// The loss, and its gradient, are the mean of the batch.
StepOutput mean_of_batch(OneWeight& model, const at::Tensor& batch) {
  const at::Tensor mean = batch.mean();
  return {.loss = (model.w - model.w.detach() + 1) * mean,
          .num_samples = batch.numel(),
          .metrics = {{"largest", MeanMetric(batch.max(), 1)}}};
}

/// Three updates an epoch, evaluated after each epoch, with a log line every two.
auto run_of_three(RunLogger* logger = nullptr) {
  return OneWeightRun(numbered_batches(3), ledger,
                      {.lr = 0.1, .evaluation_set = batches({{0}}), .logger = logger});
}

}  // namespace

CATCH_TEST_CASE(
    "an epoch's record has means over its samples, the mean gradient norm, the rate and the evaluation") {
  // Per sample the loss is (1 + 3 + 8) / 3; the gradients are 2 and 8.
  OneWeightRun run(batches({{1, 3}, {8}}), mean_of_batch, {.evaluation_set = batches({{0}})});
  run.trainer.train({.epochs = 1});
  const auto& history = run.trainer.history();
  CATCH_REQUIRE(history.size() == 1);
  CATCH_CHECK(history[0].epoch == 1);
  CATCH_CHECK(history[0].step == 2);
  CATCH_CHECK(history[0].values == Values{{"epoch/loss", 4},
                                          {"epoch/largest", 5.5},
                                          {"epoch/grad_norm", 5},
                                          {"lr", 1},
                                          {"validation/loss", -10}});
}

CATCH_TEST_CASE("the log has one event an epoch with its means, whatever the lines between") {
  const std::int64_t log_every = GENERATE(1, 2, 5);
  RecordedLog log;
  OneWeightRun run(numbered_batches(3), ledger, {.logger = log.logger()});
  run.trainer.train({.epochs = 2, .log_every = log_every});
  CATCH_CHECK(log.count("epoch") == 2);
  CATCH_CHECK(log.series("epoch/loss") == std::vector<std::pair<std::int64_t, double>>{{3, -1}, {6, -4}});
  CATCH_CHECK(log.series("epoch/grad_norm") == std::vector<std::pair<std::int64_t, double>>{{3, 1}, {6, 1}});
}

CATCH_TEST_CASE("evaluations inside an epoch, and a run that ends inside one, are in no record") {
  auto run = run_of_three();
  run.trainer.train({.max_steps = 5, .evaluate_every = Interval{1, Interval::Unit::step}});
  CATCH_REQUIRE(run.trainer.history().size() == 1);
  CATCH_CHECK(run.trainer.history()[0].value("validation/loss") == Approx(-0.3));
}

CATCH_TEST_CASE("a second train() call goes on with the history, or begins it anew") {
  auto run = run_of_three();
  run.trainer.train({.epochs = 1});
  run.trainer.train({.epochs = 2});
  CATCH_CHECK(run.trainer.history().size() == 2);
  run.trainer.train({.epochs = 3}, {.reset_history = true});
  CATCH_REQUIRE(run.trainer.history().size() == 1);
  CATCH_CHECK(run.trainer.history()[0].epoch == 3);
}

CATCH_TEST_CASE("a run that is resumed at any update has the history of one that was not, to the bit") {
  const std::int64_t stopped_at = GENERATE(range(1, 9));
  const TrainConfig config{.epochs = 3, .log_every = 2};
  auto whole = run_of_three();
  whole.trainer.train(config);

  const TemporaryDirectory folder;
  {
    const HookFunctions stop{.after_update = [&](Run& run, const UpdateOutcome&) {
      if (run.state().step == stopped_at) run.request_stop("enough");
    }};
    OneWeightRun stopped(numbered_batches(3), ledger,
                         {.lr = 0.1, .evaluation_set = batches({{0}}), .hooks = stop});
    stopped.trainer.train(config, {.checkpoint_dir = folder.path()});
  }
  auto resumed = run_of_three();
  resumed.trainer.train(config, {.checkpoint_dir = folder.path(), .resume_from = latest});
  CATCH_CHECK(whole.trainer.history().size() == 3);
  CATCH_CHECK(resumed.trainer.history().json() == whole.trainer.history().json());
}

CATCH_TEST_CASE(
    "a hook reads the history: the epoch's means at its end, its evaluation before the next one") {
  std::vector<Values> seen;
  const auto look = [&](Run& run) {
    if (!run.history().empty()) seen.push_back(run.history().back().values);
  };
  const HookFunctions hook{.epoch_begin = look, .epoch_end = look, .run_end = look};
  OneWeightRun run(numbered_batches(3), ledger, {.evaluation_set = batches({{0}}), .hooks = hook});
  run.trainer.train({.epochs = 2});
  const Values means{{"epoch/loss", -1}, {"epoch/grad_norm", 1}, {"lr", 1}};
  Values all = means;
  all.emplace_back("validation/loss", -3);
  CATCH_REQUIRE(seen.size() == 4);
  CATCH_CHECK(seen[0] == means);
  CATCH_CHECK(seen[1] == all);
}

CATCH_TEST_CASE("the history of a run of two ranks is over both, the same on both, and goes on with both") {
  const TemporaryDirectory folder;
  const auto history_until = [&](std::int64_t epochs) {
    return run_ranks(2, [&](Rank& rank) {
      OneWeightRun run(batches({{1, 3}, {8}, {4}}), mean_of_batch, {.launch = rank.launch()});
      run.trainer.train({.epochs = epochs}, {.checkpoint_dir = folder.path(), .resume_from = latest});
      return run.trainer.history().json();
    });
  };
  // Both batches of the first window, then one alone: losses (1 + 3 + 8 + 4) / 4, norms (12 / 3 + 4) / 2.
  const std::string values =
      R"("values":{"epoch/loss":4.0,"epoch/largest":5.0,"epoch/grad_norm":4.0,"lr":1.0}})";
  const std::string first = R"([{"epoch":1,"step":2,)" + values;
  CATCH_CHECK(history_until(1).same_text() == first + "]");
  CATCH_CHECK(history_until(2).same_text() == first + R"(,{"epoch":2,"step":4,)" + values + "]");
}
