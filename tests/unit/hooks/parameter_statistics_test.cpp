#include "lockstep/hooks/parameter_statistics.hpp"

#include "support/fixtures.hpp"
#include "support/ranks.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Values = ParameterStatistics::Values;

namespace {

/// Weights (3, 4) and 0, whose gradients are `scale` times (6, 8) and 2; and one that no loss uses.
struct Small : torch::nn::Module {
  at::Tensor a = register_parameter("a", torch::tensor({3.0, 4.0}, torch::kDouble));
  at::Tensor b = register_parameter("b", torch::zeros({}, torch::kDouble));
  at::Tensor unused = register_parameter("unused", torch::ones({}, torch::kDouble));
};

StepOutput loss(Small& model, const at::Tensor& batch) {
  const at::Tensor direction = torch::tensor({6.0, 8.0}, torch::kDouble);
  return {.loss = batch.mean() * ((model.a * direction).sum() + 2 * model.b), .num_samples = batch.numel()};
}

struct SmallRun {
  explicit SmallRun(Batches batches,
                    AcceleratorOptions options = {.precision = Precision::fp64, .device = at::kCPU},
                    ParameterStatisticsOptions statistics_options = {.every = 1}, RunLogger* logger = nullptr)
      : accelerator(options),
        optimizer(weight_decay_groups(model, 0), {.lr = 0}),
        source(std::move(batches)),
        statistics(model, statistics_options),
        trainer(accelerator, model, optimizer, source, Step(loss),
                {.logger = logger, .hooks = {statistics}}) {}

  using Step = std::function<StepOutput(Small&, const at::Tensor&)>;
  Accelerator accelerator;
  Small model;
  SGD optimizer;
  Batches source;
  ParameterStatistics statistics;
  Trainer<Small, Batches, Step> trainer;
};

Values expected(double scale) {
  return {{"weight_norm/a", 5},
          {"grad_norm/a", 10 * scale},
          {"grad_weight_ratio/a", 2 * scale},
          {"weight_norm/b", 0},
          {"grad_norm/b", 2 * scale},  // no ratio to a weight of 0
          {"weight_norm/unused", 1},  // no gradient
          {"weight_norm/total", std::sqrt(26.0)}};
}

}  // namespace

CATCH_TEST_CASE("norms are of the weights and of the mean gradient before clipping") {
  // Samples 1, 3 and 8: the mean gradient is 4 times the direction.
  SmallRun run(batches({{1, 3}, {8}}),
               {.precision = Precision::fp64, .gradient_accumulation_steps = 2, .device = at::kCPU});
  run.trainer.train({.epochs = 1, .max_grad_norm = 0.1});
  CATCH_CHECK(run.statistics.values() == expected(4));
}

CATCH_TEST_CASE("measurements are events of every N-th update, and none where N is not positive") {
  RecordedLog log;
  SmallRun run(numbered_batches(7), {.precision = Precision::fp64, .device = at::kCPU}, {.every = 3},
               log.logger());
  run.trainer.train({.epochs = 1});
  CATCH_CHECK(log.series("weight_norm/a") == std::vector<std::pair<std::int64_t, double>>{{3, 5}, {6, 5}});
  CATCH_CHECK(log.series("grad_norm/a") == std::vector<std::pair<std::int64_t, double>>{{3, 20}, {6, 50}});
  SmallRun off(numbered_batches(2), {.precision = Precision::fp64, .device = at::kCPU}, {.every = 0});
  off.trainer.train({.epochs = 1});
  CATCH_CHECK(off.statistics.values().empty());
}

CATCH_TEST_CASE("weights or gradients alone are measured on request") {
  SmallRun weights(batches({{1}}), {.precision = Precision::fp64, .device = at::kCPU},
                   {.every = 1, .gradients = false});
  weights.trainer.train({.epochs = 1});
  CATCH_CHECK(weights.statistics.values().size() == 4);
  SmallRun gradients(batches({{1}}), {.precision = Precision::fp64, .device = at::kCPU},
                     {.every = 1, .weights = false});
  gradients.trainer.train({.epochs = 1});
  CATCH_CHECK(
      gradients.statistics.values() ==
      Values{{"grad_norm/a", 10}, {"grad_weight_ratio/a", 2}, {"grad_norm/b", 2}});
}

CATCH_TEST_CASE("a parameter that a window has not used has no gradient norm and no ratio, one with a gradient of 0 has both") {
  const bool flat = GENERATE(true, false);
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  Small model;
  SGD optimizer(weight_decay_groups(model, 0), {.lr = 0});
  auto source = numbered_batches(3);
  std::vector<Values> seen;
  ParameterStatistics statistics(model, {.every = 1, .weights = false});
  const HookFunctions reading{.after_update = [&](Run&, const UpdateOutcome&) { seen.push_back(statistics.values()); }};
  // `a` is always used; `b` in the second window alone.
  const auto step = [](Small& used, const at::Tensor& batch) -> StepOutput {
    const auto number = batch.item<double>();
    const at::Tensor loss = used.a.sum() * 0;
    return {.loss = number == 1 ? loss + used.b : loss, .num_samples = 1};
  };
  Trainer trainer(accelerator, model, optimizer, source, step,
                  {.flat_parameters = flat, .hooks = {statistics, reading}});
  trainer.train({.epochs = 1});
  const Values idle{{"grad_norm/a", 0}, {"grad_weight_ratio/a", 0}};
  CATCH_CHECK(seen == std::vector<Values>{
                          idle, {{"grad_norm/a", 0}, {"grad_weight_ratio/a", 0}, {"grad_norm/b", 1}}, idle});
}

CATCH_TEST_CASE(
    "several modules are measured under their names, a shared parameter once, and frozen ones not") {
  Small model;
  model.b.requires_grad_(false);
  ParameterStatistics statistics({{"model", model}, {"same", model}}, {.every = 1, .gradients = false});
  TrainState state;
  Accelerator accelerator({.device = at::kCPU});
  const History history;
  const TrainConfig config;
  const std::optional<EvaluationResults> test_results;
  Run run(state, history, test_results, config, accelerator, nullptr);
  statistics.window_begin(run);
  statistics.before_clip(run);
  CATCH_CHECK(statistics.values() == Values{{"weight_norm/model.a", 5},
                                            {"weight_norm/model.unused", 1},
                                            {"weight_norm/total", std::sqrt(26.0)}});
  model.unused.requires_grad_(false);
  statistics.window_begin(run);
  statistics.before_clip(run);
  CATCH_CHECK(statistics.values() == Values{{"weight_norm/model.a", 5}, {"weight_norm/total", 5}});
}

CATCH_TEST_CASE("two ranks measure the gradient over both, under the names of one rank") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    SmallRun run(batches({{1, 3}, {8}}), rank.options());
    run.trainer.train({.epochs = 1});
    return std::string(run.statistics.values() == expected(4) ? "as on one rank" : "different");
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.same_text() == "as on one rank");
}
