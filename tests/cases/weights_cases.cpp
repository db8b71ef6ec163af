// Failures of other training loops with what an update writes: averages, non-finite values, weight decay.
#include <limits>

#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

CATCH_TEST_CASE("the averaged model has the model's own batch-norm statistics", "[T-47]") {
  Accelerator accelerator({.device = at::kCPU});
  torch::nn::BatchNorm1d model(1);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  const Batches source(3, torch::full({4, 1}, 10.0f));
  Tape seen;  // the statistics that an evaluation with the average works with
  const auto look = [&seen](torch::nn::BatchNorm1dImpl& net, const at::Tensor& x) -> StepOutput {
    seen.push_back(net.running_mean.item<double>());
    return {.loss = net.forward(x).mean(), .num_samples = x.size(0)};
  };
  Evaluator evaluator(accelerator, {{"validation", source}}, look);
  const auto step = [](torch::nn::BatchNorm1dImpl& net, const at::Tensor& x) -> StepOutput {
    return {.loss = net.forward(x).mean(), .num_samples = x.size(0)};
  };
  Trainer trainer(accelerator, model, optimizer, source, step, {.evaluator = &evaluator, .ema_decay = 0.5});
  (void)trainer.train({.epochs = 1, .evaluate_every = std::nullopt});

  const auto raw = sha256(trainer.weights());
  seen.clear();
  (void)trainer.evaluate(Weights::ema);
  CATCH_REQUIRE(seen.size() == 3);
  CATCH_CHECK(seen[0] == Approx(2.71).epsilon(1e-6));
  CATCH_CHECK(sha256(trainer.weights()) == raw);
  for (const auto& [name, tensor] : trainer.weights(Weights::ema)) {
    if (name == "running_mean") CATCH_CHECK(tensor.item<double>() == Approx(2.71).epsilon(1e-6));
    if (name != "num_batches_tracked") continue;
    CATCH_CHECK(tensor.scalar_type() == torch::kLong);
    CATCH_CHECK(tensor.item<std::int64_t>() == 3);
  }
}

CATCH_TEST_CASE("an average that never moved is the present weights, bit for bit", "[T-49]") {
  OneWeightRun run(numbered_batches(1), ledger,
                   {.ema_decay = 0.5, .evaluation_set = batches({{1, 2}}), .evaluation_step = follow});
  {
    const torch::NoGradGuard no_grad;
    run.model.w.fill_(0.1);  // other weights than the Trainer was built with
  }
  const auto raw = run.trainer.evaluate(Weights::raw);
  CATCH_CHECK(raw.at("validation").at("loss") == Approx((0.9 * 0.9 + 1.9 * 1.9) / 4));
  CATCH_CHECK(run.trainer.evaluate(Weights::ema) == raw);
  CATCH_CHECK(run.trainer.weights(Weights::ema)[0].second.item<double>() == 0.1);
}

CATCH_TEST_CASE("the average moves once an update, and not in a skipped window", "[T-50]") {
  const std::int64_t empty_window = GENERATE(0, 1);
  std::int64_t left_to_skip = 4 * empty_window;
  const auto step = [&](OneWeight& model, const at::Tensor&) -> StepOutput {
    return {.loss = model.w, .num_samples = left_to_skip-- > 0 ? 0 : 1};
  };
  OneWeightRun run(numbered_batches(8 + 4 * empty_window), step, {.accumulation = 4, .ema_decay = 0.5});
  const auto state = run.trainer.train({.epochs = 1});
  CATCH_CHECK(state.step == 2);
  CATCH_CHECK(state.batches == 8 + 4 * empty_window);
  CATCH_CHECK(run.w() == -2.0);
  CATCH_CHECK(run.trainer.weights(Weights::ema)[0].second.item<double>() == -1.25);
}

CATCH_TEST_CASE("a NaN loss ends the run before its update, and is in the log as it is", "[T-59]") {
  RecordedLog log;
  const auto step = [](OneWeight& model, const at::Tensor&) -> StepOutput {
    const double factor = model.value() == -2 ? std::numeric_limits<double>::quiet_NaN() : 1;
    return {.loss = model.w * factor, .num_samples = 1};
  };
  OneWeightRun run(numbered_batches(5), step, {.logger = log.logger()});
  CATCH_CHECK_THROWS_WITH(run.trainer.train({.epochs = 1, .log_every = 1}),
                          Contains("[non-finite-loss]") && Contains("nan at update 3"));
  CATCH_CHECK(run.w() == -2.0);
  CATCH_CHECK(run.trainer.state().step == 2);
  const std::vector<std::pair<std::int64_t, double>> losses{{1, 0.0}, {2, -1.0}};
  CATCH_CHECK(log.series("train/loss") == losses);
  CATCH_REQUIRE(log.count("error") == 1);
  CATCH_CHECK_THAT(log.events().back().text, Contains("nan at update 3"));
}

namespace {

/// Two layers that share one weight.
struct Tied : torch::nn::Module {
  struct Layer : torch::nn::Module {
    explicit Layer(const at::Tensor& weight) : weight(register_parameter("weight", weight)) {}
    at::Tensor weight;
  };

  Tied()
      : first(register_module("first", std::make_shared<Layer>(torch::zeros({1, 1})))),
        second(register_module("second", std::make_shared<Layer>(first->weight))) {}

  std::shared_ptr<Layer> first;
  std::shared_ptr<Layer> second;
};

}  // namespace

CATCH_TEST_CASE("a shared weight is stepped once", "[T-82]") {
  Accelerator accelerator({.device = at::kCPU});
  Tied model;
  CATCH_REQUIRE(model.parameters().size() == 2);
  const Batches source = numbered_batches(1);
  const auto step = [](Tied& net, const at::Tensor&) -> StepOutput {
    return {.loss = net.second->weight.sum(), .num_samples = 1};
  };

  const auto groups = weight_decay_groups(model, 0.0);
  CATCH_REQUIRE(groups.size() == 1);
  CATCH_REQUIRE(groups[0].parameters.size() == 1);
  GroupedOptimizer<torch::optim::SGD> optimizer(groups, torch::optim::SGDOptions(1));
  Trainer trainer(accelerator, model, optimizer, source, step);
  (void)trainer.train({.epochs = 1});
  CATCH_CHECK(model.first->weight.item<float>() == -1.0f);

  torch::optim::SGD twice(model.parameters(), torch::optim::SGDOptions(1));
  CATCH_CHECK(thrown_id<ConfigError>([&] { Trainer refused(accelerator, model, twice, source, step); }) ==
              "duplicate-parameter");
}

CATCH_TEST_CASE("norms, biases and scalars do not decay", "[T-83]") {
  struct Net : torch::nn::Module {
    Net()
        : linear(register_module("linear", torch::nn::Linear(3, 4))),
          layer_norm(register_module("layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})))),
          batch_norm(register_module("batch_norm", torch::nn::BatchNorm1d(4))),
          scale(register_parameter("scale", torch::ones({}))) {}
    torch::nn::Linear linear;
    torch::nn::LayerNorm layer_norm;
    torch::nn::BatchNorm1d batch_norm;
    at::Tensor scale;
  };
  Net model;
  const auto groups = weight_decay_groups(model, 0.5);
  const auto elements = [](const ParameterGroup& group) {
    std::int64_t count = 0;
    for (const auto& parameter : group.parameters) count += parameter.second.numel();
    return count;
  };
  CATCH_REQUIRE(groups.size() == 2);
  CATCH_CHECK(groups[0].name == "decay");
  CATCH_CHECK(elements(groups[0]) == 12);
  CATCH_CHECK(groups[1].name == "no_decay");
  CATCH_CHECK(elements(groups[1]) == 21);

  GroupedOptimizer<torch::optim::AdamW> optimizer(groups, torch::optim::AdamWOptions(0.1));
  const auto weight = model.linear->weight.detach().clone();
  NamedTensors exempt;
  for (const auto& [name, parameter] : groups[1].parameters)
    exempt.emplace_back(name, parameter.detach().clone());
  for (auto& parameter : model.parameters()) parameter.mutable_grad() = torch::zeros_like(parameter);
  optimizer.step();
  CATCH_CHECK(torch::allclose(model.linear->weight, weight * 0.95));
  CATCH_CHECK(sha256(exempt) == sha256(groups[1].parameters));
}
