// Runs whose updates are read late.
#include "loop/late_update.hpp"

#include <ATen/record_function.h>

#include <atomic>
#include <limits>

#include "support/catch.hpp"
#include "support/fixtures.hpp"
#include "support/product.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using Series = std::vector<std::pair<std::int64_t, double>>;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// sum_of_weight() with an infinite gradient in the microbatches that are named, from 1. So that what an overflow leaves
/// in buffers shows, they are spoilt too.
ProductStep infinite_in(std::vector<std::int64_t> microbatches) {
  return [microbatches = std::move(microbatches), call = std::int64_t{0}](Product& model, const at::Tensor& batch) mutable {
    const bool infinite = std::find(microbatches.begin(), microbatches.end(), ++call) != microbatches.end();
    StepOutput output = sum_of_weight(model, batch);
    if (infinite) {
      output.loss = output.loss + 0;
      output.loss.register_hook([](const at::Tensor& gradient) { return gradient * infinity; });
      model.calls.fill_(infinity);
    }
    return output;
  };
}

ParameterGroups all_of(Product& model, double weight_decay = 0) {
  return {{.name = "all", .parameters = trainable_parameters(model), .weight_decay = weight_decay}};
}

struct RunSettings {
  AcceleratorOptions accelerator = {.device = at::kCPU};
  TrainerOptions<Product> trainer = {};
  std::int64_t batches = 8;
};

template <class OwnOptimizer>
struct LateRun {
  LateRun(const auto& options, Product& trained, ProductStep step, RunSettings settings)
      : accelerator(settings.accelerator),
        model(trained),
        optimizer(all_of(trained), options),
        batches(static_cast<std::size_t>(settings.batches), torch::ones({1, 2})),
        trainer(accelerator, model, optimizer, batches,
                [step = std::move(step), this](Product& product, const at::Tensor& batch) mutable {
                  seen_steps.push_back(trainer.state().step);
                  return step(product, batch);
                },
                std::move(settings.trainer)) {}

  Accelerator accelerator;
  Product& model;
  OwnOptimizer optimizer;
  Batches batches;
  std::vector<std::int64_t> seen_steps;  // what the Trainer had counted when each microbatch began
  Trainer<Product, Batches, ProductStep> trainer;
};

/// With SGD of rate 1.
struct SgdRun : Product, LateRun<SGD> {
  explicit SgdRun(ProductStep step, RunSettings settings = {})
      : LateRun(SGDOptions{.lr = 1}, *this, std::move(step), std::move(settings)) {}
};

AcceleratorOptions fp16(LossScalerOptions scaler) {
  return {.precision = Precision::fp16_mixed, .device = at::kCPU, .loss_scaler = scaler};
}

/// Nothing but the end of the epoch needs to know of an update.
TrainConfig late(TrainConfig config = {}) {
  config.epochs = 1;
  config.log_every = 100;
  config.checkpoint_every = {};
  config.late_finite_check = true;
  return config;
}

std::int64_t saved_step(const NamedTensors& state) {
  for (const auto& [name, tensor] : state) {
    if (name == "weight/step") return tensor.item<std::int64_t>();
  }
  return 0;
}

}  // namespace

CATCH_TEST_CASE("an update is counted when the window after it is closed, the last of the epoch at once") {
  SgdRun run(sum_of_weight);
  CATCH_CHECK(run.trainer.train(late()).step == 8);
  CATCH_CHECK(run.value() == -8);
  // The first update is read at once, the second before the third is applied, and so on.
  CATCH_CHECK(run.seen_steps == std::vector<std::int64_t>{0, 1, 1, 2, 3, 4, 5, 6});

  SgdRun usual(sum_of_weight);
  auto config = late();
  config.late_finite_check = false;
  (void)usual.trainer.train(config);
  CATCH_CHECK(usual.seen_steps == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

CATCH_TEST_CASE("an update is read at once where its end is logged, evaluated, compared or saved") {
  const TemporaryDirectory directory;
  RecordedLog log;
  const auto counted = [&](const auto& change, const TrainOptions& options = {}) {
    SgdRun run(sum_of_weight, {.trainer = {.logger = log.logger()}});
    auto config = late();
    change(config);
    (void)run.trainer.train(config, options);
    return run.seen_steps;
  };
  CATCH_CHECK(counted([](auto& config) { config.log_every = 3; }) ==
              std::vector<std::int64_t>{0, 1, 1, 3, 3, 4, 6, 6});
  const Interval third{.every = 3, .unit = Interval::Unit::step};
  CATCH_CHECK(counted([&](auto& config) { config.log_histograms_every = third; }) ==
              std::vector<std::int64_t>{0, 1, 1, 3, 3, 4, 6, 6});
  CATCH_CHECK(counted([&](auto& config) { config.check_ranks_every = third; }) ==
              std::vector<std::int64_t>{0, 1, 1, 3, 3, 4, 6, 6});
  CATCH_CHECK(counted([](auto& config) { config.max_steps = 3; }) == std::vector<std::int64_t>{0, 1, 1});
  CATCH_CHECK(counted([&](auto& config) { config.checkpoint_every = third; },
                      {.checkpoint_dir = directory.path() / "checkpoints"}) ==
              std::vector<std::int64_t>{0, 1, 1, 3, 3, 4, 6, 6});

  Accelerator accelerator({.device = at::kCPU});
  Batches set{torch::ones({1, 2})};
  Evaluator evaluator(accelerator, {{"validation", set}}, ProductStep(sum_of_weight));
  SgdRun evaluated(sum_of_weight, {.trainer = {.evaluator = &evaluator, .logger = log.logger()}});
  auto config = late();
  config.evaluate_every = third;
  (void)evaluated.trainer.train(config);
  CATCH_CHECK(evaluated.seen_steps == std::vector<std::int64_t>{0, 1, 1, 3, 3, 4, 6, 6});
  CATCH_CHECK(log.series("validation/loss") == Series{{3, -6}, {6, -12}, {8, -16}});
}

CATCH_TEST_CASE("a stop, a save and a request of a hook are met by an update that is read at once") {
  const TemporaryDirectory directory;
  StopRequest stop;
  SgdRun run([&](Product& model, const at::Tensor& batch) {
    if (model.value() == -4) stop.request("enough");  // in the fifth window
    return sum_of_weight(model, batch);
  });
  const auto state = run.trainer.train(late(), {.checkpoint_dir = directory.path() / "stopped", .stop = &stop});
  CATCH_CHECK(state.stop_reason == "enough");
  CATCH_CHECK(state.step == 5);
  CATCH_CHECK(run.value() == -5);
  const auto last = directory.path() / "stopped" / "last" / "model.safetensors";
  for (const auto& [name, tensor] : read_safetensors(last).tensors) {
    CATCH_CHECK(tensor.flatten()[0].item<double>() == (name == "weight" ? -5 : 5));
  }
  CATCH_CHECK(run.trainer.train(late()).step == 8);

  SaveRequest save;
  SgdRun saving([&](Product& model, const at::Tensor& batch) {
    if (model.value() == -4) save.request();
    return sum_of_weight(model, batch);
  });
  const auto saves = directory.path() / "saves";
  (void)saving.trainer.train(late(), {.checkpoint_dir = saves, .save_now = &save});
  CATCH_CHECK(checkpoint_folders(saves) == std::vector<std::string>{"step-00000005", "step-00000008"});
  CATCH_CHECK(saving.seen_steps == std::vector<std::int64_t>{0, 1, 1, 2, 3, 5, 5, 6});

  HookFunctions at_second_epoch{.epoch_begin = [](Run& current) {
    if (current.state().epoch == 1) current.request_stop("a hook");
  }};
  SgdRun hooked(sum_of_weight, {.trainer = {.hooks = {at_second_epoch}}});
  auto config = late();
  config.epochs = 2;
  CATCH_CHECK(hooked.trainer.train(config).step == 9);
}

// The product is a half, whose largest number is 65504: at scale 65536 its gradient is infinite, at 32768 it is not.
CATCH_TEST_CASE("the window after an overflow is lost too where it used the old scale, and lowers nothing") {
  RecordedLog log;
  SgdRun run(sum_of_weight,
             {.accelerator = fp16({.growth_interval = 2}),
              .trainer = {.ema_decay = 0.5, .logger = log.logger()},
              .batches = 9});
  const auto state = run.trainer.train(late());
  // 65536: skipped, at once. 32768 twice, growth. 65536: skipped, late, and once more. 32768 twice, growth.
  // 65536: skipped, late. The last window, at 65536 still, is skipped at once.
  CATCH_CHECK(log.series("loss_scale") == Series{{0, 65536}, {2, 65536}, {2, 65536}, {4, 65536}, {4, 65536}});
  CATCH_CHECK(state.step == 4);
  CATCH_CHECK(state.batches == 9);
  CATCH_CHECK(state.samples == 9);
  CATCH_CHECK(run.value() == -4);
  CATCH_CHECK(run.calls.item<double>() == 4);
  double average = 0;
  for (int update = 1; update <= 4; ++update) average += (-update - average) / 2;
  CATCH_CHECK(run.trainer.weights(Weights::ema).front().second[0].item<double>() == average);
  CATCH_CHECK(log.series("epoch/grad_norm").front().second == Approx(std::sqrt(2.0)));
  std::vector<std::string> reasons;
  for (const auto& event : log.events()) {
    if (event.event == "skip") reasons.push_back(event.text);
  }
  CATCH_REQUIRE(reasons.size() == 5);
  CATCH_CHECK(reasons[1] == "the gradients overflowed at loss scale 65536, which is 32768 from now on");
  CATCH_CHECK(reasons[2] == reasons[1]);
}

CATCH_TEST_CASE("an overflow changes no moment, no count of updates and no average, in both layouts") {
  const bool flat = GENERATE(true, false);
  const bool average_buffers = GENERATE(true, false);
  Product model;
  LateRun<AdamW> run(AdamWOptions{.lr = 0.5}, model, infinite_in({3, 6}),
                     {.accelerator = fp16({.initial_scale = 4}),
                      .trainer = {.ema_decay = 0.5, .average_buffers = average_buffers, .flat_parameters = flat}});
  CATCH_CHECK(run.trainer.train(late()).step == 6);
  // With a constant gradient and right bias corrections, an update takes the rate from each element.
  CATCH_CHECK(model.value() == Approx(-0.5 * 6).epsilon(1e-6));
  CATCH_CHECK(saved_step(run.optimizer.state()) == 6);
  CATCH_CHECK(model.calls.item<double>() == 6);
  double average = 0, average_calls = 1;
  for (int update = 1; update <= 6; ++update) {
    average += (-0.5 * update - average) / 2;
    average_calls += (update - average_calls) / 2;
  }
  for (const auto& [name, tensor] : run.trainer.weights(Weights::ema)) {
    if (name == "weight") CATCH_CHECK(tensor[0].item<double>() == Approx(average).epsilon(1e-6));
    if (name == "calls") CATCH_CHECK(tensor.item<double>() == Approx(average_buffers ? average_calls : 6));
  }
}

CATCH_TEST_CASE("an overflow in the first update of momentum leaves it the first") {
  Product model;
  LateRun<SGD> run(SGDOptions{.lr = 1, .momentum = 0.5, .dampening = 0.5}, model, infinite_in({1, 2}),
                   {.accelerator = fp16({.initial_scale = 4}), .batches = 4});
  CATCH_CHECK(run.trainer.train(late()).step == 2);
  // The first step takes the gradient as it is, the second 0.5 * 1 + 0.5 * 1.
  CATCH_CHECK(model.value() == -2);
}

CATCH_TEST_CASE("gradients that are not finite end the run as before their window, named one window late") {
  const TemporaryDirectory directory;
  const bool clipped = GENERATE(true, false);
  SgdRun run(infinite_in({3}), {.trainer = {.ema_decay = 0.5}});
  auto config = late();
  if (clipped) config.max_grad_value = 1;
  CATCH_CHECK_THAT(train_error(run, config, {.checkpoint_dir = directory.path()}),
                   Contains("[non-finite-gradient]") && Contains("at update 3, rank 0") && Contains("late_finite_check"));
  CATCH_CHECK(run.seen_steps.size() == 4);
  CATCH_CHECK(run.trainer.state().step == 2);
  CATCH_CHECK(run.trainer.state().batches == 2);
  CATCH_CHECK(run.value() == -2);
  CATCH_CHECK(run.calls.item<double>() == 2);
  CATCH_CHECK(run.trainer.weights(Weights::ema).front().second[0].item<double>() == -1.25);

  SgdRun resumed(sum_of_weight, {.trainer = {.ema_decay = 0.5}});
  CATCH_CHECK(resumed.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = latest}).step == 8);
  CATCH_CHECK(resumed.seen_steps.front() == 2);
  CATCH_CHECK(resumed.calls.item<double>() == 8);
}

CATCH_TEST_CASE("an error in the window after a late update leaves that one counted, or says that it was not finite") {
  const std::int64_t infinite = GENERATE(100, 3);
  const TemporaryDirectory directory;
  SgdRun run([step = infinite_in({infinite}), call = 0](Product& model, const at::Tensor& batch) mutable {
    if (++call == 4) throw std::runtime_error("the fourth");
    return step(model, batch);
  });
  CATCH_CHECK_THROWS_WITH(run.trainer.train(late(), {.checkpoint_dir = directory.path()}), "the fourth");
  const std::int64_t updates = infinite == 3 ? 2 : 3;
  CATCH_CHECK(run.trainer.state().step == updates);
  CATCH_CHECK(run.value() == -static_cast<double>(updates));
  CATCH_CHECK(run.calls.item<double>() == static_cast<double>(updates));
  SgdRun resumed(sum_of_weight);
  (void)resumed.trainer.train(late(), {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(resumed.seen_steps.front() == updates);
}

CATCH_TEST_CASE("an overflow at the smallest scale that is read late ends the run before it") {
  SgdRun run(infinite_in({2}), {.accelerator = fp16({.initial_scale = smallest_loss_scale})});
  CATCH_CHECK_THAT(train_error(run, late()), Contains("[endless-overflow]") && Contains("at update 2"));
  CATCH_CHECK(run.trainer.state().step == 1);
  CATCH_CHECK(run.value() == -1);
}

CATCH_TEST_CASE("a norm that overflows counts as not finite, though no gradient is") {
  const auto huge = [](Product& model, const at::Tensor& batch) -> StepOutput {
    auto output = sum_of_weight(model, batch);
    output.loss = output.loss * (model.value() == -1 ? 1e30 : 1.0);
    return output;
  };
  SgdRun run(huge);
  CATCH_CHECK_THAT(train_error(run, late()), Contains("[non-finite-gradient]"));
  CATCH_CHECK(run.value() == -1);
}

CATCH_TEST_CASE("what has to know of each update at once is refused by name") {
  const auto refusal = [](auto& optimizer, Product& model, TrainerOptions<Product> options, const auto& change) {
    Accelerator accelerator({.device = at::kCPU});
    Batches batches(4, torch::ones({1, 2}));
    struct {
      Trainer<Product, Batches, ProductStep> trainer;
    } run{{accelerator, model, optimizer, batches, ProductStep(sum_of_weight), std::move(options)}};
    change(run.trainer);
    return train_error(run, late());
  };
  const auto none = [](auto&) {};
  Product model;
  torch::optim::SGD foreign(model.parameters(), torch::optim::SGDOptions(1));
  CATCH_CHECK_THAT(refusal(foreign, model, {}, none),
                   Contains("[invalid-settings]") && Contains("late_finite_check is set, but the optimizer (SGD)"));
  SGD own(all_of(model), {.lr = 1});
  CATCH_CHECK(refusal(own, model, {}, none).empty());
  CATCH_CHECK_THAT(refusal(own, model, {.optimizer_step = [](torch::optim::Optimizer&, const auto&) {}}, none),
                   Contains("but optimizer_step has to know"));
  const auto noise = [](Run&) {};
  for (const auto& [name, hook] :
       {std::pair("window_begin", HookFunctions{.window_begin = noise}),
        std::pair("after_loss", HookFunctions{.after_loss = [](Run&, const StepOutput&) {}}),
        std::pair("before_sync", HookFunctions{.before_sync = noise}),
        std::pair("before_clip", HookFunctions{.before_clip = noise}),
        std::pair("before_update", HookFunctions{.before_update = noise}),
        std::pair("after_update", HookFunctions{.after_update = [](Run&, const UpdateOutcome&) {}})}) {
    CATCH_CHECK_THAT(refusal(own, model, {.hooks = {hook}}, none), Contains(std::string("but a hook's ") + name));
  }
  torch::optim::StepLR schedule(own, 2);
  CATCH_CHECK_THAT(refusal(own, model, {}, [&](auto& trainer) { trainer.set_scheduler(schedule); }),
                   Contains("but a schedule of Torch's"));
}

CATCH_TEST_CASE("launching an update reads no tensor on the host") {
  static std::atomic<int> reads;
  reads = 0;
  Product model;
  // On the CPU the fused AdamW reads its own count of steps.
  SGD rule(all_of(model, 0.1), {.lr = 0.1, .momentum = 0.9});
  OptimizerAdapter optimizer(rule, trainable_parameters(model));
  WeightAverage average({.decay = 0.5}, trainable_parameters(model), &optimizer.arena());
  average.start();
  AccumulationWindow window(1, 1, {});
  optimizer.arena().open_window();
  window.add(sum_of_weight(model, torch::ones({1, 2})));
  optimizer.arena().after_backward();
  optimizer.arena().close_window();
  const std::vector<at::Tensor> now = {model.calls}, before = {torch::zeros({})};
  const auto handle = at::addGlobalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
        const std::string name = function.name();
        reads += name == "aten::item" || name == "aten::_local_scalar_dense" || name == "aten::is_nonzero";
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  const auto norm = launch_update(window, 1, optimizer, &average, {.max_norm = 1.0, .max_value = 0.5}, {now, before});
  CATCH_CHECK(reads == 0);
  CATCH_CHECK(norm.read() == Approx(std::sqrt(2.0)));
  CATCH_CHECK(reads > 0);
  at::removeCallback(handle);
}
