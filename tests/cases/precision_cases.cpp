// Failures of other training loops with a loss scaler.
#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// `used` takes part in the loss, `spare` only where a Step says so. Single precision, whose products stay single under
/// autocast.
struct Pair : torch::nn::Module {
  at::Tensor used = register_parameter("used", torch::zeros({}));
  at::Tensor spare = register_parameter("spare", torch::ones({}));
};

using Series = std::vector<std::pair<std::int64_t, double>>;
using PairStep = std::function<StepOutput(Pair&, const at::Tensor&)>;

struct PairRun {
  PairRun(Precision precision, std::int64_t batches, PairStep step, std::int64_t accumulation = 1,
          LossScalerOptions scaler = {}, RunLogger* logger = nullptr)
      : accelerator({.precision = precision,
                     .gradient_accumulation_steps = accumulation,
                     .device = at::kCPU,
                     .loss_scaler = precision == Precision::fp32 ? std::optional<LossScalerOptions>{} : scaler}),
        optimizer(ParameterGroups{{.name = "used", .parameters = {{"used", model.used}}, .weight_decay = 0},
                                  {.name = "spare", .parameters = {{"spare", model.spare}}, .weight_decay = 0.25}},
                  {.lr = 1}),
        source(numbered_batches(batches)),
        trainer(accelerator, model, optimizer, source, step, {.logger = logger}) {}

  Pair model;
  Accelerator accelerator;
  SGD optimizer;
  Batches source;
  Trainer<Pair, Batches, PairStep> trainer;
};

StepOutput times(const at::Tensor& parameter, double factor) { return {.loss = parameter * factor, .num_samples = 1}; }

const PairStep thirty = [](Pair& model, const at::Tensor&) { return times(model.used, 30); };

}  // namespace

CATCH_TEST_CASE("the norm is clipped once the scale is divided out", "[T-53]") {
  RecordedLog log;
  PairRun run(Precision::fp16_mixed, 1, thirty, 1, {.initial_scale = 1024}, log.logger());
  (void)run.trainer.train({.epochs = 1, .log_every = 1, .max_grad_norm = 3.0});
  CATCH_CHECK(run.model.used.item<double>() == Approx(-3).epsilon(1e-6));
  CATCH_REQUIRE(log.series("grad_norm").size() == 1);
  CATCH_CHECK(log.series("grad_norm")[0].second == 30);
}

CATCH_TEST_CASE("the scale is divided out once an update, over the end of an epoch too", "[T-55]") {
  RecordedLog log;
  PairRun run(Precision::fp16_mixed, 3, thirty, 2, {.initial_scale = 1024}, log.logger());
  const auto state = run.trainer.train({.epochs = 2, .log_every = 1, .max_grad_norm = 3.0});
  CATCH_CHECK(state.step == 4);
  CATCH_CHECK(run.model.used.item<double>() == Approx(-12).epsilon(1e-6));
  CATCH_CHECK(log.series("grad_norm") == Series{{1, 30}, {2, 30}, {3, 30}, {4, 30}});
}

CATCH_TEST_CASE("an overflow leaves nothing in the gradients of the next window", "[T-56]") {
  RecordedLog log;
  int window = 0;
  const PairStep step = [&](Pair& model, const at::Tensor&) { return times(model.used, window++ == 0 ? 2e34 : 1); };
  PairRun run(Precision::fp16_mixed, 2, step, 1, {}, log.logger());
  const auto state = run.trainer.train({.epochs = 1, .log_every = 1});
  CATCH_CHECK(state.step == 1);
  CATCH_CHECK(state.batches == 2);
  CATCH_CHECK(run.model.used.item<double>() == -1);
  CATCH_CHECK(log.series("loss_scale") == Series{{0, 65536}, {1, 32768}});
}

CATCH_TEST_CASE("a gradient that no scale makes finite ends the run with an error", "[T-56]") {
  PairRun run(Precision::fp16_mixed, 100,
              [](Pair& model, const at::Tensor&) -> StepOutput { return {.loss = model.used.sqrt(), .num_samples = 1}; });
  CATCH_CHECK(thrown_id<NonFiniteError>([&] { (void)run.trainer.train({.epochs = 1}); }) == "endless-overflow");
  CATCH_CHECK(run.trainer.state().step == 0);
}

CATCH_TEST_CASE("a group without a gradient is left alone, and a loss without one refused, scaled or not", "[T-58]") {
  for (const auto precision : {Precision::fp32, Precision::fp16_mixed}) {
    CATCH_CAPTURE(to_string(precision));
    PairRun run(precision, 2, [](Pair& model, const at::Tensor&) { return times(model.used, 2); });
    (void)run.trainer.train({.epochs = 1});
    CATCH_CHECK(run.model.used.item<double>() == -4);
    CATCH_CHECK(run.model.spare.item<double>() == 1);  // no decay either
    PairRun without(precision, 1, [](Pair&, const at::Tensor& batch) { return times(batch.sum(), 2); });
    CATCH_CHECK(thrown_id<StepError>([&] { (void)without.trainer.train({.epochs = 1}); }) == "loss-without-gradient");
  }
}
