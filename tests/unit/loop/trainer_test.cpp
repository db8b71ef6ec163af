#include "lockstep/loop/trainer.hpp"

#include <limits>
#include <list>
#include <stdexcept>

#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

constexpr auto every_step = Interval{1, Interval::Unit::step};

}  // namespace

// ---- what a Trainer is built from ----

TORCH_MODULE_IMPL(OneWeightHolder, OneWeight);

CATCH_TEST_CASE("a model held by shared_ptr, by a holder or by reference is trained alike") {
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  const Batches source = numbered_batches(3);
  const auto train = [&](auto&& model, const std::vector<at::Tensor>& parameters) {
    torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(1));
    Trainer trainer(accelerator, model, optimizer, source, ledger);
    return trainer.train({.epochs = 1}).step;
  };
  const auto shared = std::make_shared<OneWeight>();
  OneWeightHolder holder;
  OneWeight object;
  CATCH_CHECK(train(shared, shared->parameters()) == 3);
  CATCH_CHECK(train(holder, holder->parameters()) == 3);
  CATCH_CHECK(train(object, object.parameters()) == 3);
  CATCH_CHECK(shared->value() == -3.0);
  CATCH_CHECK(holder->value() == -3.0);
  CATCH_CHECK(object.value() == -3.0);
}

CATCH_TEST_CASE("a Trainer keeps the shared_ptr or holder it is given") {
  Accelerator accelerator({.device = at::kCPU});
  const Batches source = numbered_batches(1);
  auto shared = std::make_shared<OneWeight>();
  torch::optim::SGD optimizer(shared->parameters(), torch::optim::SGDOptions(1));
  const std::weak_ptr<OneWeight> observer = shared;
  {
    Trainer trainer(accelerator, shared, optimizer, source, ledger);
    shared.reset();
    CATCH_CHECK_FALSE(observer.expired());
    (void)trainer.train({.epochs = 1});
  }
  CATCH_CHECK(observer.expired());
}

CATCH_TEST_CASE("a model that is not there is refused") {
  Accelerator accelerator({.device = at::kCPU});
  const Batches source = numbered_batches(1);
  OneWeight other;
  torch::optim::SGD optimizer(other.parameters(), torch::optim::SGDOptions(1));
  const std::shared_ptr<OneWeight> null;
  OneWeightHolder empty(nullptr);
  CATCH_CHECK(thrown_id<Error>([&] { Trainer trainer(accelerator, null, optimizer, source, ledger); }) ==
              "null-model");
  CATCH_CHECK(thrown_id<Error>([&] { Trainer trainer(accelerator, empty, optimizer, source, ledger); }) ==
              "null-model");
}

CATCH_TEST_CASE("a model and an optimizer that do not belong together are refused") {
  Accelerator accelerator({.device = at::kCPU});
  const Batches source = numbered_batches(1);
  OneWeight model, other;
  const auto id = [&](std::vector<at::Tensor> parameters) {
    return thrown_id<ConfigError>([&] {
      torch::optim::SGD optimizer(std::move(parameters), torch::optim::SGDOptions(1));
      Trainer trainer(accelerator, model, optimizer, source, ledger);
    });
  };
  CATCH_CHECK(id(other.parameters()) == "foreign-parameter");
  CATCH_CHECK(id({model.w, model.w}) == "duplicate-parameter");
  CATCH_CHECK(id({}) == "no-trainable-parameter");
}

CATCH_TEST_CASE(
    "a Trainer moves its model to the accelerator's type, and the optimizer goes on training it") {
  Accelerator accelerator({.precision = Precision::fp32, .device = at::kCPU});
  const Batches source = numbered_batches(2);
  OneWeight model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
  const auto step = [](OneWeight& model, const at::Tensor& targets) {
    CATCH_CHECK(targets.scalar_type() == torch::kFloat);
    return ledger(model, targets);
  };
  Trainer trainer(accelerator, model, optimizer, source, step);
  CATCH_CHECK(model.w.scalar_type() == torch::kFloat);
  (void)trainer.train({.epochs = 1});
  CATCH_CHECK(model.value() == -2.0);
}

CATCH_TEST_CASE("an average with an impossible decay is refused") {
  CATCH_CHECK(thrown_id<ConfigError>([] { OneWeightRun(numbered_batches(1), ledger, {.ema_decay = 1.0}); }) ==
              "invalid-settings");
}

// ---- settings ----

CATCH_TEST_CASE("all mistakes in the settings come in one message") {
  OneWeightRun run(numbered_batches(1), ledger);
  const auto text =
      train_error(run, {.epochs = 0, .max_steps = 0, .keep_checkpoints = 3, .monitor = Monitor("x/y")});
  CATCH_CHECK_THAT(text, Contains("[invalid-settings]") && Contains("epochs = 0 is set") &&
                             Contains("max_steps is 0") &&
                             Contains("keep_checkpoints is set but checkpoint_dir is not") &&
                             Contains("nothing is evaluated"));
  CATCH_CHECK(run.trainer.state() == TrainState{});
}

CATCH_TEST_CASE("a monitor must watch something that is evaluated") {
  OneWeightRun without_evaluator(numbered_batches(1), ledger);
  CATCH_CHECK_THAT(train_error(without_evaluator, {.epochs = 1, .monitor = Monitor("validation/loss")}),
                   Contains("[invalid-settings]") && Contains("pass an Evaluator"));
  OneWeightRun run(numbered_batches(1), ledger, {.evaluation_set = numbered_batches(1)});
  CATCH_CHECK_THAT(train_error(run, {.epochs = 1, .monitor = Monitor("test/loss")}),
                   Contains("[invalid-settings]") && Contains("the evaluation sets are validation"));
  CATCH_CHECK(run.w() == 0.0);
  CATCH_CHECK_THAT(train_error(run, {.epochs = 1, .monitor = Monitor("validation/accuracy")}),
                   Contains("[unknown-metric]") && Contains("reports validation/loss"));
}

CATCH_TEST_CASE("a schedule that cannot work is refused when it is set") {
  OneWeightRun run(numbered_batches(1), ledger);
  CATCH_CHECK(thrown_id<ConfigError>([&] { run.trainer.set_scheduler(WarmupDecay{.total_steps = 0}); }) ==
              "invalid-settings");
}

CATCH_TEST_CASE("rates are set for every group or for one by its name") {
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  struct TwoWeights : torch::nn::Module {
    at::Tensor a = register_parameter("a", torch::zeros({}));
    at::Tensor b = register_parameter("b", torch::zeros({}));
  };
  TwoWeights model;
  GroupedOptimizer<torch::optim::SGD> optimizer(
      {{.name = "first", .parameters = {{"a", model.a}}},
       {.name = "second", .parameters = {{"b", model.b}}, .lr = 10.0}},
      torch::optim::SGDOptions(1));
  RecordedLog log;
  const Batches source = numbered_batches(1);
  const auto step = [](TwoWeights& net, const at::Tensor&) -> StepOutput {
    return {.loss = net.a + net.b, .num_samples = 1};
  };
  Trainer trainer(accelerator, model, optimizer, source, step, {.logger = log.logger()});
  trainer.set_scheduler(WarmupDecay{
      .total_steps = 10, .warmup_steps = 2, .start_factor = 0.5, .decay = WarmupDecay::Decay::constant});
  const auto values = [&] { return std::pair(model.a.item<double>(), model.b.item<double>()); };
  (void)trainer.train({.epochs = 1, .log_every = 1});
  CATCH_CHECK(values() == std::pair(-0.5, -5.0));
  trainer.set_lr("second", 20);
  (void)trainer.train({.epochs = 2, .log_every = 1});
  CATCH_CHECK(values() == std::pair(-0.5 - 0.75, -5.0 - 15.0));
  trainer.set_lr(2);
  (void)trainer.train({.epochs = 3, .log_every = 1});
  CATCH_CHECK(values() == std::pair(-1.25 - 2.0, -20.0 - 2.0));
  CATCH_CHECK(log.series("lr/second") ==
              std::vector<std::pair<std::int64_t, double>>{{1, 5}, {2, 15}, {3, 2}});

  CATCH_CHECK_THROWS_WITH(trainer.set_lr("third", 1),
                          Contains("[unknown-group]") && Contains("first, second"));
  CATCH_CHECK(thrown_id<ConfigError>([&] { trainer.set_lr(-1); }) == "invalid-settings");
  CATCH_CHECK(thrown_id<ConfigError>([&] { trainer.set_lr(std::numeric_limits<double>::quiet_NaN()); }) ==
              "invalid-settings");
}

// ---- limits and several calls ----

CATCH_TEST_CASE("max_steps is exact wherever it falls, and counts all calls together") {
  for (std::int64_t limit = 1; limit <= 6; ++limit) {
    OneWeightRun run(numbered_batches(5), ledger, {.accumulation = 2});
    const auto state = run.trainer.train({.epochs = 2, .max_steps = limit});
    CATCH_CHECK(state.step == limit);
    CATCH_CHECK(run.w() == -static_cast<double>(limit));
    CATCH_CHECK(state.end == EndReason::max_steps);
    const auto rest = run.trainer.train({.epochs = 2});
    CATCH_CHECK(rest.step == 6);
    CATCH_CHECK(rest.batches == 10);
    CATCH_CHECK(rest.end == EndReason::epochs);
  }
}

CATCH_TEST_CASE("a second train() call goes on, and one beyond its limits does nothing") {
  Tape tape;
  RecordedLog log;
  OneWeightRun run(numbered_batches(2), recorded(tape),
                   {.evaluation_set = numbered_batches(1), .logger = log.logger()});
  CATCH_CHECK(run.trainer.train({.epochs = 1}).epoch == 1);
  CATCH_CHECK(run.trainer.train({.epochs = 3}).epoch == 3);
  CATCH_CHECK(tape == Tape{0, 1, 0, 1, 0, 1});
  CATCH_CHECK(log.count("evaluate") == 3);
  const auto state = run.trainer.train({.epochs = 2});
  CATCH_CHECK(state.step == 6);
  CATCH_CHECK(state.end == EndReason::epochs);
  CATCH_CHECK(tape.size() == 6);
  CATCH_CHECK(log.count("evaluate") == 3);
  CATCH_CHECK(run.trainer.state() == state);
}

CATCH_TEST_CASE("train() sets train mode and gradients, whatever it finds") {
  OneWeightRun run(numbered_batches(1), [](OneWeight& model, const at::Tensor& batch) {
    CATCH_CHECK(model.is_training());
    return ledger(model, batch);
  });
  run.model.eval();
  const torch::NoGradGuard no_grad;
  (void)run.trainer.train({.epochs = 1});
  CATCH_CHECK(run.w() == -1.0);
  CATCH_CHECK_FALSE(torch::GradMode::is_enabled());
}

CATCH_TEST_CASE("samples are counted as the Step counts them") {
  OneWeightRun run(batches({{1, 1, 1}, {2}, {3, 3}}), follow, {.accumulation = 2});
  CATCH_CHECK(run.trainer.train({.epochs = 2}).samples == 12);
}

namespace {

/// Batches of which nobody knows how many come.
struct Stream {
  std::list<at::Tensor> batches;
  bool once = false;
  bool read = false;

  auto begin() { return once && std::exchange(read, true) ? batches.end() : batches.begin(); }
  auto end() { return batches.end(); }
};

Stream stream(std::int64_t count, bool once = false) {
  const auto all = numbered_batches(count);
  return {.batches = {all.begin(), all.end()}, .once = once};
}

}  // namespace

CATCH_TEST_CASE(
    "a source of unknown length is trained to its end, tails included, but nothing can be planned") {
  Tape tape;
  OneWeightRun run(stream(5), recorded(tape), {.accumulation = 2});
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)run.trainer.updates_per_epoch(); }) == "unknown-length");
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)run.trainer.planned_steps({.epochs = 2}); }) ==
              "unknown-length");
  CATCH_CHECK(run.trainer.planned_steps({.epochs = 2, .max_steps = 7}) == 7);
  const auto state = run.trainer.train({.epochs = 2});
  CATCH_CHECK(state.step == 6);
  CATCH_CHECK(tape == Tape{0, 1, 2, 3, 4, 0, 1, 2, 3, 4});
}

CATCH_TEST_CASE("a source without batches is refused, at once or when it is used up") {
  OneWeightRun empty(Batches{}, ledger);
  CATCH_CHECK_THAT(train_error(empty, {.epochs = 1}),
                   Contains("[empty-source]") && Contains("no batch in epoch 0"));
  OneWeightRun once(stream(2, /*once=*/true), ledger);
  CATCH_CHECK_THAT(train_error(once, {.epochs = 3}),
                   Contains("[empty-source]") && Contains("no batch in epoch 1"));
  CATCH_CHECK(once.w() == -2.0);
}

CATCH_TEST_CASE("the plan is capped by max_steps") {
  OneWeightRun run(numbered_batches(5), ledger, {.accumulation = 2});
  CATCH_CHECK(run.trainer.planned_steps({.epochs = 4}) == 12);
  CATCH_CHECK(run.trainer.planned_steps({.epochs = 4, .max_steps = 5}) == 5);
  CATCH_CHECK(run.trainer.planned_steps({.epochs = 1, .max_steps = 5}) == 3);
}

// ---- stopping, evaluating, judging ----

CATCH_TEST_CASE("a stop asked before the run makes no update, and a cleared one runs") {
  OneWeightRun run(numbered_batches(3), ledger);
  StopRequest stop;
  stop.request("not today");
  const auto state = run.trainer.train({.epochs = 1}, {.stop = &stop});
  CATCH_CHECK(state.step == 0);
  CATCH_CHECK(state.end == EndReason::stop_request);
  CATCH_CHECK(state.stop_reason == "not today");
  stop.clear();
  const auto rest = run.trainer.train({.epochs = 1}, {.stop = &stop});
  CATCH_CHECK(rest.step == 3);
  CATCH_CHECK(rest.end == EndReason::epochs);
  CATCH_CHECK_FALSE(rest.stop_reason);
}

CATCH_TEST_CASE("a run stopped at any update and continued is the run that was not stopped") {
  OneWeightRun whole(numbered_batches(5), follow, {.accumulation = 2, .lr = 0.3, .ema_decay = 0.5});
  (void)whole.trainer.train({.epochs = 2});
  for (std::int64_t update = 1; update <= 6; ++update) {
    StopRequest stop;
    std::int64_t calls = 0;
    const std::int64_t call_in_update = update <= 3 ? 2 * update - 1 : 2 * update - 2;
    OneWeightRun run(numbered_batches(5),
                     [&](OneWeight& model, const at::Tensor& batch) {
                       if (++calls == call_in_update) stop.request("test");
                       return follow(model, batch);
                     },
                     {.accumulation = 2, .lr = 0.3, .ema_decay = 0.5});
    CATCH_CHECK(run.trainer.train({.epochs = 2}, {.stop = &stop}).step == update);
    const auto state = run.trainer.train({.epochs = 2});
    CATCH_CHECK(state.step == 6);
    CATCH_CHECK(sha256(run.trainer.weights()) == sha256(whole.trainer.weights()));
    CATCH_CHECK(sha256(run.trainer.weights(Weights::ema)) == sha256(whole.trainer.weights(Weights::ema)));
  }
}

CATCH_TEST_CASE("an evaluation that was due when a stop came is made when the run goes on, once") {
  RecordedLog log;
  StopRequest stop;
  OneWeightRun run(numbered_batches(4),
                   [&](OneWeight& model, const at::Tensor& batch) {
                     if (model.value() == -1) stop.request("test");
                     return ledger(model, batch);
                   },
                   {.evaluation_set = numbered_batches(1), .logger = log.logger()});
  const TrainConfig config{.epochs = 1, .evaluate_every = Interval{2, Interval::Unit::step}};
  CATCH_CHECK(run.trainer.train(config, {.stop = &stop}).step == 2);
  CATCH_CHECK(log.count("evaluate") == 0);
  stop.clear();
  (void)run.trainer.train(config, {.stop = &stop});
  CATCH_CHECK(log.series("validation/loss") ==
              std::vector<std::pair<std::int64_t, double>>{{2, -2}, {4, -4}});
}

CATCH_TEST_CASE("a run ends with an evaluation, unless one was just made or none is wanted") {
  const auto evaluated_at = [](std::optional<Interval> interval, std::int64_t max_steps) {
    RecordedLog log;
    OneWeightRun run(numbered_batches(4), ledger,
                     {.evaluation_set = numbered_batches(1), .logger = log.logger()});
    (void)run.trainer.train({.epochs = 2, .max_steps = max_steps, .evaluate_every = interval});
    std::vector<std::int64_t> steps;
    for (const auto& point : log.series("validation/loss")) steps.push_back(point.first);
    return steps;
  };
  using Steps = std::vector<std::int64_t>;
  CATCH_CHECK(evaluated_at(Interval{2, Interval::Unit::step}, 5) == Steps{2, 4, 5});
  CATCH_CHECK(evaluated_at(Interval{2, Interval::Unit::step}, 6) == Steps{2, 4, 6});
  CATCH_CHECK(evaluated_at(Interval{1, Interval::Unit::epoch}, 8) == Steps{4, 8});
  CATCH_CHECK(evaluated_at(std::nullopt, 8).empty());
}

CATCH_TEST_CASE("evaluation during training uses the average if there is one") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(2), ledger,
                   {.ema_decay = 0.5, .evaluation_set = numbered_batches(1), .logger = log.logger()});
  (void)run.trainer.train({.epochs = 1});
  CATCH_CHECK(log.series("validation/loss") == std::vector<std::pair<std::int64_t, double>>{{2, -1.25}});
  CATCH_CHECK(run.trainer.evaluate().at("validation").at("loss") == -2.0);
  CATCH_CHECK(run.trainer.evaluate(Weights::ema).at("validation").at("loss") == -1.25);
  CATCH_CHECK(run.w() == -2.0);
}

CATCH_TEST_CASE("patience ends the run, and before its start epoch it does not count") {
  const auto ended_after = [](MonitorOptions options) {
    OneWeightRun run(numbered_batches(1), ledger,
                     {.evaluation_set = numbered_batches(1), .evaluation_step = script({5, 6, 7, 8, 9, 10})});
    const auto state = run.trainer.train({.epochs = 6, .monitor = Monitor("validation/score", options)});
    CATCH_CHECK(state.best_step == 1);
    CATCH_CHECK(state.end == (state.epoch < 6 ? EndReason::early_stop : EndReason::epochs));
    return state.epoch;
  };
  CATCH_CHECK(ended_after({.patience = 1}) == 2);
  CATCH_CHECK(ended_after({.patience = 2}) == 3);
  CATCH_CHECK(ended_after({.patience = 2, .start_epoch = 4}) == 5);
  CATCH_CHECK(ended_after({}) == 6);
}

CATCH_TEST_CASE("evaluating or exporting what is not there is refused") {
  OneWeightRun run(numbered_batches(1), ledger);
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)run.trainer.evaluate(); }) == "no-evaluator");
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)run.trainer.weights(Weights::ema); }) ==
              "no-averaged-weights");
  OneWeightRun evaluated(numbered_batches(1), ledger, {.evaluation_set = numbered_batches(1)});
  CATCH_CHECK(thrown_id<ConfigError>([&] { (void)evaluated.trainer.evaluate(Weights::ema); }) ==
              "no-averaged-weights");
}

// ---- failures ----

CATCH_TEST_CASE("a window that fails leaves everything as it was, and the run can be continued") {
  enum class Failure { step_throws, loss, gradient };
  const auto failure = GENERATE(Failure::step_throws, Failure::loss, Failure::gradient);
  Accelerator accelerator({.gradient_accumulation_steps = 2, .device = at::kCPU});
  torch::nn::Sequential model(torch::nn::BatchNorm1d(1), torch::nn::Linear(1, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const Batches source(6, torch::tensor({{1.0f}, {2.0f}}));
  std::int64_t calls = 0;
  bool broken = true;
  const auto step = [&](torch::nn::SequentialImpl& net, const at::Tensor& x) -> StepOutput {
    auto loss = net.forward(x).square().mean();
    if (++calls == 4 && broken) {
      if (failure == Failure::step_throws) throw std::runtime_error("the user's own");
      if (failure == Failure::loss) loss = loss / 0;
      if (failure == Failure::gradient) loss = loss + (loss - loss.detach()).abs().sqrt();
    }
    return {.loss = loss, .num_samples = 2};
  };
  RecordedLog log;
  Trainer trainer(accelerator, model, optimizer, source, step, {.ema_decay = 0.5, .logger = log.logger()});
  (void)trainer.train({.epochs = 1, .max_steps = 1});
  const auto look = [&] { return sha256(trainer.weights()) + sha256(trainer.weights(Weights::ema)); };
  const auto before = look();
  const auto state = trainer.state();

  try {
    (void)trainer.train({.epochs = 1});
    CATCH_FAIL("it must throw");
  } catch (const NonFiniteError& error) {
    CATCH_CHECK(error.id() == (failure == Failure::loss ? "non-finite-loss" : "non-finite-gradient"));
  } catch (const std::runtime_error& error) {
    CATCH_CHECK(std::string(error.what()) == "the user's own");
  }
  CATCH_CHECK(look() == before);
  auto after = trainer.state();
  after.end = state.end;  // of the call before, which ended
  CATCH_CHECK(after == state);
  CATCH_CHECK(log.count("error") == 1);

  broken = false;
  CATCH_CHECK(trainer.train({.epochs = 1}).step == 3);
}

CATCH_TEST_CASE("a Step's mistake comes out of train() with its id") {
  const auto id = [](StepOutput output) {
    OneWeightRun run(numbered_batches(1), [output](OneWeight&, const at::Tensor&) { return output; });
    return thrown_id<Error>([&] { (void)run.trainer.train({.epochs = 1}); });
  };
  const auto w = torch::zeros({}, torch::requires_grad());
  CATCH_CHECK(id({.loss = w, .num_samples = {}}) == "missing-num-samples");
  CATCH_CHECK(id({.loss = w.detach(), .num_samples = 1}) == "loss-without-gradient");
  CATCH_CHECK(id({.loss = w, .num_samples = 1, .metrics = {{"loss", MeanMetric(1.0, 1)}}}) ==
              "invalid-metric");
}

CATCH_TEST_CASE("an epoch of empty windows is passed through without an update and logged as skipped") {
  RecordedLog log;
  OneWeightRun run(numbered_batches(4),
                   [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
                     return {.loss = model.w, .num_samples = targets.item<double>() < 2 ? 0 : 1};
                   },
                   {.accumulation = 2, .logger = log.logger()});
  const auto state = run.trainer.train({.epochs = 1, .log_every = 1});
  CATCH_CHECK(state.step == 1);
  CATCH_CHECK(state.batches == 4);
  CATCH_CHECK(state.samples == 2);
  CATCH_CHECK(log.count("skip") == 1);
  CATCH_CHECK(run.w() == -1.0);
}

CATCH_TEST_CASE("a skipped window leaves no trace in buffers, weights, average or schedule") {
  Accelerator accelerator({.gradient_accumulation_steps = 2, .device = at::kCPU});
  torch::nn::BatchNorm1d model(1);
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(1).momentum(0.9).weight_decay(0.1));
  const Batches source(4, torch::tensor({{1.0f}, {2.0f}}));
  std::int64_t calls = 0;
  const auto step = [&](torch::nn::BatchNorm1dImpl& net, const at::Tensor& x) -> StepOutput {
    return {.loss = net.forward(x).square().mean(), .num_samples = ++calls > 2 ? 0 : 2};
  };
  Trainer trainer(accelerator, model, optimizer, source, step, {.ema_decay = 0.5});
  trainer.set_scheduler(WarmupDecay{.total_steps = 4, .decay = WarmupDecay::Decay::linear});
  const auto look = [&] { return sha256(trainer.weights()) + sha256(trainer.weights(Weights::ema)); };
  CATCH_REQUIRE(trainer.train({.epochs = 1, .max_steps = 1}).batches == 2);
  const auto before = look();
  const auto state = trainer.train({.epochs = 1});
  CATCH_CHECK(state.batches == 4);
  CATCH_CHECK(state.step == 1);
  CATCH_CHECK(calls == 4);
  CATCH_CHECK(look() == before);
  CATCH_CHECK(model->num_batches_tracked.item<std::int64_t>() == 2);
}

// ---- the log and the weights file ----

CATCH_TEST_CASE("a run tells its story in order") {
  RecordedLog log;
  const TemporaryDirectory directory;
  OneWeightRun run(numbered_batches(2), ledger,
                   {.evaluation_set = numbered_batches(1), .logger = log.logger()});
  (void)run.trainer.train({.epochs = 2, .log_every = 2},
                          {.checkpoint_dir = directory.path() / "checkpoints"});
  std::vector<std::string> story;
  for (const auto& event : log.events()) story.push_back(event.event);
  CATCH_CHECK(story == std::vector<std::string>{"start", "train", "epoch", "evaluate", "checkpoint",
                                                "train", "epoch", "evaluate", "checkpoint", "end"});
  CATCH_CHECK(log.events().back().text == "epochs");
  CATCH_CHECK(log.events()[1].samples == 2);
  CATCH_CHECK(log.series("grad_norm") == std::vector<std::pair<std::int64_t, double>>{{2, 1.0}, {4, 1.0}});
}

CATCH_TEST_CASE("a log line is the mean over all samples since the last one") {
  RecordedLog log;
  OneWeightRun run(batches({{1}, {3}, {5, 5}, {0}}),
                   [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
                     return {.loss = model.w * 0 + targets.mean(),
                             .num_samples = targets.numel(),
                             .metrics = {{"sum", MeanMetric(targets.sum(), 1)}}};
                   },
                   {.logger = log.logger()});
  (void)run.trainer.train({.epochs = 1, .log_every = 3});
  CATCH_CHECK(log.series("train/loss") == std::vector<std::pair<std::int64_t, double>>{{3, 14.0 / 4}});
  CATCH_CHECK(log.series("train/sum") == std::vector<std::pair<std::int64_t, double>>{{3, 14.0 / 3}});
}

CATCH_TEST_CASE("saved weights are those that were asked for") {
  const TemporaryDirectory directory;
  OneWeightRun run(numbered_batches(2), ledger, {.ema_decay = 0.5});
  (void)run.trainer.train({.epochs = 1});
  run.trainer.save_model(directory.path() / "raw.safetensors");
  run.trainer.save_model(directory.path() / "ema.safetensors", Weights::ema);
  const auto saved = [&](const char* name) {
    const auto tensors = read_weights(directory.path() / name);
    CATCH_REQUIRE(tensors.size() == 1);
    CATCH_CHECK(tensors[0].first == "w");
    return tensors[0].second.item<double>();
  };
  CATCH_CHECK(saved("raw.safetensors") == -2.0);
  CATCH_CHECK(saved("ema.safetensors") == -1.25);
}
