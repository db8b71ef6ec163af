// What a Trainer does in the mixed precisions.
#include <ATen/autocast_mode.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/fixtures.hpp"
#include "support/product.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using Series = std::vector<std::pair<std::int64_t, double>>;

namespace {

struct TrainedRun {
  TrainedRun(AcceleratorOptions options, ProductStep step, RunLogger* logger = nullptr, std::int64_t count = 8)
      : accelerator(options),
        optimizer(model.parameters(), torch::optim::SGDOptions(1)),
        batches(static_cast<std::size_t>(count), torch::ones({1, 2})),
        evaluator(accelerator, {{"validation", batches}}, step),
        trainer(accelerator, model, optimizer, batches, step, {.evaluator = &evaluator, .logger = logger}) {}

  double weight() const { return model.weight[0].item<double>(); }

  Accelerator accelerator;
  Product model;
  torch::optim::SGD optimizer;
  Batches batches;
  Evaluator<ProductStep> evaluator;
  Trainer<Product, Batches, ProductStep> trainer;
};

AcceleratorOptions fp16(LossScalerOptions scaler = {}) {
  return {.precision = Precision::fp16_mixed, .device = at::kCPU, .loss_scaler = scaler};
}

/// A derivative that no scale makes finite.
StepOutput infinite_derivative(Product& model, const at::Tensor& batch) {
  const auto product = model.forward(batch).to(torch::kFloat);
  return {.loss = product.mean() + (product - product.detach()).sqrt().mean(), .num_samples = 1};
}

}  // namespace

CATCH_TEST_CASE("the Step runs under autocast of the precision's type, and nothing else does") {
  const auto [precision, type] =
      GENERATE(table<Precision, at::ScalarType>({{Precision::fp32, torch::kFloat},
                                                 {Precision::bf16_mixed, torch::kBFloat16},
                                                 {Precision::fp16_mixed, torch::kHalf}}));
  std::vector<at::ScalarType> seen;
  bool autocast_in_backward = false;
  TrainedRun run({.precision = precision, .device = at::kCPU},
          [&](Product& model, const at::Tensor& batch) -> StepOutput {
            auto product = model.forward(batch);
            seen.push_back(product.scalar_type());
            if (product.requires_grad()) {
              product.register_hook([&](const at::Tensor&) {
                autocast_in_backward |= at::autocast::is_autocast_enabled(at::kCPU);
              });
            }
            return {.loss = product.mean(), .num_samples = 1};
          });
  run.trainer.train({.epochs = 1, .max_steps = 1});
  (void)run.trainer.evaluate();
  CATCH_CHECK(seen.size() >= 9);
  for (const auto found : seen) CATCH_CHECK(found == type);
  CATCH_CHECK_FALSE(autocast_in_backward);
  CATCH_CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  CATCH_CHECK(run.model.weight.scalar_type() == torch::kFloat);
}

CATCH_TEST_CASE("every update computes with the weights of the one before it") {
  RecordedLog log;
  TrainedRun run({.precision = Precision::bf16_mixed, .device = at::kCPU}, sum_of_weight, log.logger());
  run.trainer.train({.epochs = 1, .max_steps = 4, .log_every = 1});
  CATCH_CHECK(log.series("train/loss") == Series{{1, 0}, {2, -2}, {3, -4}, {4, -6}});
  CATCH_CHECK(run.trainer.evaluate().at("validation").at("loss") == -8);
}

CATCH_TEST_CASE("a Step that fails leaves no autocast behind") {
  TrainedRun run({.precision = Precision::bf16_mixed, .device = at::kCPU},
          [](Product&, const at::Tensor&) -> StepOutput { throw std::runtime_error("a Step that fails"); });
  CATCH_CHECK_THROWS_WITH(run.trainer.train({.epochs = 1}), "a Step that fails");
  CATCH_CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

// The product is a half, whose largest number is 65504: at scale 65536 its gradient is infinite, at 32768 it
// is not.
CATCH_TEST_CASE("an overflow skips its window, says so, and the scale follows") {
  RecordedLog log;
  TrainedRun run(fp16({.growth_interval = 2}), sum_of_weight, log.logger());
  const auto state = run.trainer.train({.epochs = 1, .log_every = 1});
  // skip, two updates, growth, and that again; the last two of eight are updates
  CATCH_CHECK(state.step == 5);
  CATCH_CHECK(state.batches == 8);
  CATCH_CHECK(state.samples == 8);
  CATCH_CHECK(run.weight() == -5);
  CATCH_CHECK(run.model.calls.item<double>() == 5);
  CATCH_CHECK(
      log.series("loss_scale") ==
      Series{{0, 65536}, {1, 32768}, {2, 32768}, {2, 65536}, {3, 32768}, {4, 32768}, {4, 65536}, {5, 32768}});
  for (const auto& [step, norm] : log.series("grad_norm")) CATCH_CHECK(norm == Approx(std::sqrt(2.0)));
  std::vector<std::string> reasons;
  for (const auto& event : log.events()) {
    if (event.event == "skip") reasons.push_back(event.text);
  }
  CATCH_REQUIRE(reasons.size() == 3);
  CATCH_CHECK(reasons[0] == "the gradients overflowed at loss scale 65536, which is 32768 from now on");
}

CATCH_TEST_CASE("no other precision logs a loss scale") {
  RecordedLog log;
  TrainedRun run({.precision = Precision::bf16_mixed, .device = at::kCPU}, sum_of_weight, log.logger());
  run.trainer.train({.epochs = 1, .log_every = 1});
  CATCH_CHECK(log.series("loss_scale").empty());
}

CATCH_TEST_CASE("the losses of a skipped window are in the next training line, since its samples count") {
  RecordedLog log;
  std::int64_t batch_number = 0;
  TrainedRun run(
      fp16(),
      [&](Product& model, const at::Tensor& batch) -> StepOutput {
        return {.loss = model.forward(batch).mean() + static_cast<double>(batch_number++), .num_samples = 1};
      },
      log.logger());
  run.trainer.train({.epochs = 1, .max_steps = 1, .log_every = 1});
  CATCH_CHECK(log.series("train/loss") == Series{{1, (0.0 + 1.0) / 2}});
}

CATCH_TEST_CASE(
    "endless overflow ends the run when the scale cannot come down, as before the window that failed") {
  TrainedRun run(fp16({.initial_scale = 4 * smallest_loss_scale}), infinite_derivative);
  CATCH_CHECK_THROWS_AS(run.trainer.train({.epochs = 1}), NonFiniteError);
  CATCH_CHECK(run.trainer.state().batches == 2);
  CATCH_CHECK(run.trainer.state().step == 0);
  CATCH_CHECK(run.weight() == 0);
  CATCH_CHECK(run.model.calls.item<double>() == 0);
  CATCH_CHECK_THROWS_WITH(run.trainer.train({.epochs = 1}),
                          Contains("[endless-overflow]") && Contains("weight"));
  CATCH_CHECK(run.trainer.state().batches == 2);
}

CATCH_TEST_CASE("a loss that is not finite before it is scaled is an error in fp16 too") {
  TrainedRun run(fp16(), [](Product& model, const at::Tensor& batch) -> StepOutput {
    return {.loss = model.forward(batch).mean() * std::numeric_limits<double>::infinity(), .num_samples = 1};
  });
  CATCH_CHECK_THROWS_WITH(run.trainer.train({.epochs = 1}), Contains("[non-finite-loss]"));
}

CATCH_TEST_CASE(
    "a checkpoint holds the scale and the updates since it changed, and a run goes on from both") {
  const TemporaryDirectory directory;
  const TrainOptions options{.checkpoint_dir = directory.path()};
  const LossScalerOptions scaler{.growth_interval = 3};
  TrainedRun first(fp16(scaler), sum_of_weight);
  first.trainer.train({.epochs = 1, .max_steps = 2}, options);
  const auto manifest = nlohmann::json::parse(read_text(directory.path() / "last" / "manifest.json"));
  CATCH_CHECK(manifest.at("loss_scaler") == nlohmann::json{{"scale", 32768}, {"growth_tracker", 2}});

  RecordedLog log;
  TrainedRun second(fp16(scaler), sum_of_weight, log.logger());
  second.trainer.train({.epochs = 1, .max_steps = 4, .log_every = 1},
                       {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(log.series("loss_scale") == Series{{3, 32768}, {3, 65536}, {4, 32768}});
}

CATCH_TEST_CASE(
    "a checkpoint of another precision, or of another course of the loss scale, is refused by name") {
  const TemporaryDirectory directory;
  TrainedRun first(fp16(), sum_of_weight);
  first.trainer.train({.epochs = 1, .max_steps = 1}, {.checkpoint_dir = directory.path()});
  const TrainOptions options{.checkpoint_dir = directory.path(), .resume_from = latest};
  TrainedRun bf16({.precision = Precision::bf16_mixed, .device = at::kCPU}, sum_of_weight);
  CATCH_CHECK_THROWS_WITH(bf16.trainer.train({.epochs = 1}, options),
                          Contains("precision was \"fp16-mixed\" and is \"bf16-mixed\" now"));
  TrainedRun faster(fp16({.growth_interval = 10}), sum_of_weight);
  CATCH_CHECK_THROWS_WITH(faster.trainer.train({.epochs = 1}, options), Contains("loss_scaler was {"));
}
