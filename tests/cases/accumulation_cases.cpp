// Failures of other training loops with windows, the budget of updates and the learning rate.
#include "support/fixtures.hpp"

using namespace lockstep;
using namespace lockstep::test;

CATCH_TEST_CASE("uneven microbatches give the mean over their samples, not a mean of means", "[T-01]") {
  OneWeightRun accumulated(batches({{0, 0, 0}, {4}}), follow, {.accumulation = 2});
  OneWeightRun whole(batches({{0, 0, 0, 4}}), follow);
  (void)accumulated.trainer.train({.epochs = 1});
  (void)whole.trainer.train({.epochs = 1});
  CATCH_CHECK(accumulated.w() == 1.0);
  CATCH_CHECK(whole.w() == 1.0);
}

CATCH_TEST_CASE("a short last window is divided by what it holds", "[T-02]") {
  Tape values;
  const auto step = [&values](OneWeight& model, const at::Tensor& targets) {
    values.push_back(model.value());
    return follow(model, targets);
  };
  OneWeightRun run(batches({{1}, {2}, {3}, {4}, {10}}), step, {.accumulation = 2});
  const auto state = run.trainer.train({.epochs = 1});
  CATCH_CHECK(state.step == 3);
  CATCH_CHECK(values == Tape{0, 0, 1.5, 1.5, 3.5});
  CATCH_CHECK(run.w() == 10.0);
}

CATCH_TEST_CASE("the logged gradient norm does not grow with the number of microbatches", "[T-04]") {
  // Every route a loss can take: equal and unequal microbatches, with metrics and without, a loss as a 0-dim
  // or as a one-element tensor.
  using Step = OneWeightStep<at::Tensor>;
  const Step with_metrics = [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
    auto output = follow(model, targets);
    output.metrics = {{"target", MeanMetric(targets.sum(), targets.numel())}};
    return output;
  };
  const Step one_element = [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
    return {.loss = follow(model, targets).loss.view({1}), .num_samples = targets.numel()};
  };
  for (const auto& step : {Step(follow), with_metrics, one_element}) {
    for (const auto& source :
         {batches({{1, 2, 3, 4}}), batches({{1}, {2}, {3}, {4}}), batches({{1}, {2, 3}, {4}})}) {
      RecordedLog log;
      const auto microbatches = static_cast<std::int64_t>(source.size());
      OneWeightRun run(source, step, {.accumulation = microbatches, .logger = log.logger()});
      (void)run.trainer.train({.epochs = 1, .log_every = 1});
      const auto norms = log.series("grad_norm");
      CATCH_REQUIRE(norms.size() == 1);
      CATCH_CHECK(norms[0].second == 2.5);
      CATCH_CHECK(run.w() == 2.5);
    }
  }
}

CATCH_TEST_CASE("an epoch that divides evenly into windows has no empty update at its end", "[T-07]") {
  OneWeightRun run(batches({{1}, {3}, {5}, {7}}), follow, {.accumulation = 2, .ema_decay = 0.5});
  run.trainer.set_scheduler(WarmupDecay{.total_steps = 4, .decay = WarmupDecay::Decay::linear});
  const auto state = run.trainer.train({.epochs = 1});
  CATCH_CHECK(state.step == 2);
  CATCH_CHECK(state.batches == 4);
  // Rates 1 and 0.75: w is 2, then 2 + 0.75 * 4 = 5. The average is 1, then 3.
  CATCH_CHECK(run.w() == 5.0);
  CATCH_CHECK(run.trainer.weights(Weights::ema)[0].second.item<double>() == 3.0);
}

CATCH_TEST_CASE("weight decay is applied once for each update of an even epoch", "[T-07]") {
  Accelerator accelerator(
      {.precision = Precision::fp64, .gradient_accumulation_steps = 2, .device = at::kCPU});
  OneWeight model(1.0);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
  Batches source = numbered_batches(4);
  const auto no_gradient = [](OneWeight& model, const at::Tensor&) -> StepOutput {
    return {.loss = model.w * 0, .num_samples = 1};
  };
  Trainer trainer(accelerator, model, optimizer, source, no_gradient);
  (void)trainer.train({.epochs = 1});
  CATCH_CHECK(model.value() == Approx(0.95 * 0.95).epsilon(1e-12));
}

CATCH_TEST_CASE("evaluating inside the epoch leaves the windows alone", "[T-08]") {
  std::vector<std::int64_t> evaluated;
  std::int64_t in_this_evaluation = 0;
  const auto evaluation = [&](OneWeight& model, const at::Tensor& targets) {
    evaluated.push_back(targets.numel());
    ++in_this_evaluation;
    return follow(model, targets);
  };
  std::vector<std::int64_t> window_sizes;
  std::int64_t microbatches = 0;
  double last_w = 0;
  const auto training = [&](OneWeight& model, const at::Tensor& targets) {
    if (model.value() != last_w) window_sizes.push_back(std::exchange(microbatches, 0));
    last_w = model.value();
    ++microbatches;
    return ledger(model, targets);
  };
  RecordedLog log;
  OneWeightRun run(numbered_batches(6), training,
                   {.accumulation = 2,
                    .evaluation_set = batches({{0, 0}, {0, 0}, {6}}),
                    .evaluation_step = evaluation,
                    .logger = log.logger()});
  const auto state = run.trainer.train({.epochs = 1, .evaluate_every = Interval{1, Interval::Unit::step}});
  window_sizes.push_back(microbatches);
  CATCH_CHECK(state.step == 3);
  CATCH_CHECK(run.w() == -3.0);
  CATCH_CHECK(window_sizes == std::vector<std::int64_t>{2, 2, 2});
  CATCH_CHECK(evaluated == std::vector<std::int64_t>{2, 2, 1, 2, 2, 1, 2, 2, 1});
  // sum((w - t)^2) / 2 / 5 at w = -1, -2, -3
  const auto losses = log.series("validation/loss");
  CATCH_REQUIRE(losses.size() == 3);
  CATCH_CHECK(losses[0].second == Approx((4 * 1 + 49) / 10.0));
  CATCH_CHECK(losses[1].second == Approx((4 * 4 + 64) / 10.0));
  CATCH_CHECK(losses[2].second == Approx((4 * 9 + 81) / 10.0));
}

CATCH_TEST_CASE("max_steps counts updates, not microbatches, and no batch is used after it", "[T-10]") {
  Tape tape;
  OneWeightRun run(numbered_batches(20), recorded(tape), {.accumulation = 2});
  const auto state = run.trainer.train({.epochs = 5, .max_steps = 3});
  CATCH_CHECK(state.step == 3);
  CATCH_CHECK(state.batches == 6);
  CATCH_CHECK(state.end == EndReason::max_steps);
  CATCH_CHECK_FALSE(state.stop_reason);
  CATCH_CHECK(run.w() == -3.0);
  CATCH_CHECK(tape == Tape{0, 1, 2, 3, 4, 5});
}

CATCH_TEST_CASE("the planned budget counts short windows as the loop does", "[T-11]") {
  OneWeightRun run(numbered_batches(5), ledger, {.accumulation = 2});
  const TrainConfig config{.epochs = 10};
  CATCH_CHECK(run.trainer.updates_per_epoch() == 3);
  CATCH_CHECK(run.trainer.planned_steps(config) == 30);
  const auto state = run.trainer.train(config);
  CATCH_CHECK(state.step == 30);
  CATCH_CHECK(state.batches == 50);
  CATCH_CHECK(state.epoch == 10);
}

CATCH_TEST_CASE("the schedule advances once an update", "[T-13]") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(8), ledger, {.accumulation = 2, .logger = log.logger()});
  const WarmupDecay schedule{.total_steps = 4, .warmup_steps = 2, .decay = WarmupDecay::Decay::linear};
  run.trainer.set_scheduler(schedule);
  const auto state = run.trainer.train({.epochs = 1, .log_every = 1});
  const std::vector<std::pair<std::int64_t, double>> rates{{1, 0}, {2, 0.5}, {3, 1}, {4, 0.5}};
  CATCH_CHECK(log.series("lr") == rates);
  CATCH_CHECK(run.w() == -2.0);
  CATCH_CHECK(schedule.factor(state.step) == 0.0);
}
