// Failures of other training loops with evaluation: the best model, early stopping, metrics, side effects.
#include <limits>

#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr auto every_step = Interval{1, Interval::Unit::step};

OneWeightRun<Batches> script_run(const std::vector<double>& scores) {
  return {numbered_batches(static_cast<std::int64_t>(scores.size())),
          ledger,
          {.evaluation_set = numbered_batches(1), .evaluation_step = script(scores)}};
}

TrainConfig judged_by(MonitorOptions options) {
  return {.epochs = 1, .evaluate_every = every_step, .monitor = Monitor("validation/score", options)};
}

}  // namespace

CATCH_TEST_CASE("of equal scores the earliest is the best", "[T-40]") {
  auto minimized = script_run({.5, .4, .4, .4});
  const auto state = minimized.trainer.train(judged_by({.patience = 100}));
  CATCH_CHECK(state.best_step == 2);
  CATCH_CHECK(state.best_metric == .4);
  CATCH_CHECK(state.evaluations_without_improvement == 2);

  auto maximized = script_run({.4, .5, .5, .5});
  const auto other = maximized.trainer.train(judged_by({.direction = Direction::maximize, .patience = 100}));
  CATCH_CHECK(other.best_step == 2);
  CATCH_CHECK(other.evaluations_without_improvement == 2);
}

CATCH_TEST_CASE("the best is the highest or the lowest as the direction says, and its weights are saved",
                "[T-41]") {
  const TemporaryDirectory directory;
  auto maximized = script_run({.6, .7, .65});
  const auto up = maximized.trainer.train(judged_by({.direction = Direction::maximize}),
                                          {.checkpoint_dir = directory.path() / "maximize"});
  CATCH_CHECK(up.best_step == 2);
  CATCH_CHECK(saved_w(directory.path() / "maximize" / "best") == -2.0);

  auto minimized = script_run({-.6, -.7, -.65});
  const auto down = minimized.trainer.train(judged_by({.direction = Direction::minimize}),
                                            {.checkpoint_dir = directory.path() / "minimize"});
  CATCH_CHECK(down.best_step == 2);
  CATCH_CHECK(saved_w(directory.path() / "minimize" / "best") == -2.0);
}

CATCH_TEST_CASE("patience and the best survive an interruption", "[T-46]") {
  const TemporaryDirectory directory;
  const std::vector<double> scores{.5, .6, .7, .8, .9};
  StopRequest stop;
  OneWeightRun first(numbered_batches(5),
                     [&](OneWeight& model, const at::Tensor& batch) {
                       if (model.value() == -1) stop.request("test");
                       return ledger(model, batch);
                     },
                     {.evaluation_set = numbered_batches(1), .evaluation_step = script(scores)});
  const auto config = judged_by({.patience = 2});
  const auto stopped = first.trainer.train(config, {.checkpoint_dir = directory.path(), .stop = &stop});
  CATCH_REQUIRE(stopped.step == 2);

  auto second = script_run(scores);
  const auto state =
      second.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(state.end == EndReason::early_stop);
  CATCH_CHECK(state.step == 3);
  CATCH_CHECK(state.best_metric == .5);
  CATCH_CHECK(state.best_step == 1);
}

CATCH_TEST_CASE("a short evaluation batch weighs what it holds", "[T-64]") {
  const auto accuracy = [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
    return {.loss = model.w,
            .num_samples = targets.numel(),
            .metrics = {{"accuracy", {targets.sum(), targets.numel()}}}};
  };
  OneWeightRun run(
      numbered_batches(1), ledger,
      {.evaluation_set = batches({{1, 1, 0, 0}, {0, 1, 0, 1}, {1}}), .evaluation_step = accuracy});
  CATCH_CHECK(run.trainer.evaluate().at("validation").at("accuracy") == 5.0 / 9.0);
}

CATCH_TEST_CASE("the mean of an evaluation is the same in the result, the log and the monitor", "[T-67]") {
  RecordedLog log;
  const auto value = [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
    return {.loss = model.w, .num_samples = 1, .metrics = {{"value", {targets.sum(), 1}}}};
  };
  OneWeightRun run(
      numbered_batches(1), ledger,
      {.evaluation_set = batches({{1}, {2}, {6}}), .evaluation_step = value, .logger = log.logger()});
  const auto state = run.trainer.train({.epochs = 1, .monitor = Monitor("validation/value")});
  CATCH_CHECK(state.best_metric == 3.0);
  CATCH_CHECK(log.series("validation/value") == std::vector<std::pair<std::int64_t, double>>{{1, 3.0}});
  CATCH_CHECK(run.trainer.evaluate().at("validation").at("value") == 3.0);
}

namespace {

using Fields = std::map<std::string, at::Tensor>;

StepOutput count_rows(OneWeight& model, const Fields& batch) {
  const auto& x = batch.at("x");
  return {.loss = model.w, .num_samples = x.size(0), .metrics = {{"score", {x.sum(), x.size(0)}}}};
}

}  // namespace

CATCH_TEST_CASE("a metric's weight is the count it came with, whatever the batch looks like", "[T-68]") {
  Accelerator accelerator({.device = at::kCPU});
  OneWeight model;
  const auto rows = [](std::int64_t count, double sum) {
    return Fields{{"mask", torch::ones({1, 9})},
                  {"x", torch::full({count, 1}, sum / static_cast<double>(count))}};
  };
  const std::vector<Fields> set{rows(4, 4), rows(1, 3)};
  Evaluator evaluator(accelerator, {{"validation", set}}, count_rows);
  CATCH_CHECK(evaluator.run(model).at("validation").at("score") == Approx(7.0 / 5.0));

  const auto count_of = [&](SampleCount count) {
    return thrown_id<StepError>([&] {
      Evaluator wrong(accelerator, {{"validation", set}}, [&](OneWeight& model, const Fields&) -> StepOutput {
        return {.loss = model.w, .num_samples = count};
      });
      (void)wrong.run(model);
    });
  };
  CATCH_CHECK(count_of({}) == "missing-num-samples");
  CATCH_CHECK(count_of(-3) == "negative-num-samples");
  CATCH_CHECK(count_of(0).empty());
}

namespace {

struct Trace {
  Tape tape;
  Tape draws;
  std::string weights;
  bool operator==(const Trace&) const = default;
};

enum class Evaluate { never, every_step, every_three_steps, before_training };

Trace trace(Evaluate when) {
  Accelerator accelerator({.precision = Precision::fp64, .seed = 4, .device = at::kCPU});
  OneWeight model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
  auto loader = numbered_loader(7, {.shuffle = true, .seed = 4});
  auto evaluation_loader = numbered_loader(5, {.batch_size = 2, .shuffle = true, .seed = 9});
  const auto noisy = [](OneWeight& model, const Example& batch) -> StepOutput {
    return {.loss = (model.w * torch::rand({3}, torch::kDouble)).mean(), .num_samples = batch.data.numel()};
  };
  Evaluator evaluator(accelerator, {{"validation", evaluation_loader}}, noisy);
  Trace result;
  const auto step = [&](OneWeight& model, const Example& batch) -> StepOutput {
    const auto draw = torch::rand({}, torch::kDouble);
    record(result.draws, draw.view({1}));
    record(result.tape, batch.data);
    return {.loss = (model.w - draw).square() / 2, .num_samples = 1};
  };
  Trainer trainer(accelerator, model, optimizer, loader, step, {.evaluator = &evaluator, .ema_decay = 0.5});
  if (when == Evaluate::before_training) (void)trainer.evaluate();
  std::optional<Interval> interval;
  if (when == Evaluate::every_step) interval = every_step;
  if (when == Evaluate::every_three_steps) interval = Interval{3, Interval::Unit::step};
  (void)trainer.train({.epochs = 2, .evaluate_every = interval});
  result.weights = sha256(trainer.weights()) + sha256(trainer.weights(Weights::ema));
  return result;
}

}  // namespace

CATCH_TEST_CASE("evaluating changes neither order, random numbers nor weights of the training", "[T-79]") {
  const Trace reference = trace(Evaluate::never);
  CATCH_REQUIRE(reference.tape.size() == 14);
  CATCH_CHECK(trace(Evaluate::every_step) == reference);
  CATCH_CHECK(trace(Evaluate::every_three_steps) == reference);
  CATCH_CHECK(trace(Evaluate::before_training) == reference);
}

CATCH_TEST_CASE("evaluating gives every module back the mode it had", "[T-80]") {
  struct TwoNorms : torch::nn::Module {
    TwoNorms()
        : frozen(register_module("frozen", torch::nn::BatchNorm1d(1))),
          moving(register_module("moving", torch::nn::BatchNorm1d(1))) {}
    torch::nn::BatchNorm1d frozen;
    torch::nn::BatchNorm1d moving;
  };
  Accelerator accelerator({.device = at::kCPU});
  TwoNorms model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
  const Batches source{torch::full({4, 1}, 10.0f)};
  // train() sets train mode once, at its entry; a part that is to stay in eval mode is put there by the Step.
  const auto step = [](TwoNorms& net, const at::Tensor& x) -> StepOutput {
    net.frozen->eval();
    return {.loss = (net.frozen(x) + net.moving(x)).mean(), .num_samples = x.size(0)};
  };
  const auto look = [](TwoNorms& net, const at::Tensor& x) -> StepOutput {
    CATCH_CHECK_FALSE(net.moving->is_training());
    return {.loss = net.moving(x).mean(), .num_samples = x.size(0)};
  };
  Evaluator evaluator(accelerator, {{"validation", source}}, look);
  Trainer trainer(accelerator, model, optimizer, source, step, {.evaluator = &evaluator});

  model.frozen->eval();
  (void)trainer.evaluate();
  CATCH_CHECK(model.is_training());
  CATCH_CHECK_FALSE(model.frozen->is_training());
  CATCH_CHECK(model.moving->is_training());

  (void)trainer.train({.epochs = 2});
  CATCH_CHECK_FALSE(model.frozen->is_training());
  CATCH_CHECK(model.moving->is_training());
  CATCH_CHECK(model.frozen->running_mean.item<float>() == 0.0f);
  CATCH_CHECK(model.moving->running_mean.item<float>() == Approx(1.9));
}
