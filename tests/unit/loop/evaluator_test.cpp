#include "lockstep/loop/evaluator.hpp"

#include <cmath>
#include <stdexcept>

#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

CATCH_TEST_CASE("every set is evaluated by its name, from an empty start") {
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  OneWeight model(1.0);
  const Batches first = batches({{1, 1, 1}, {5}});
  auto second = numbered_loader(4, {.batch_size = 3});
  const std::vector<Example> examples{{torch::zeros({1}), {}}};
  const auto step = [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
    auto output = follow(model, targets);
    output.metrics = {{"target", MeanMetric(targets.sum(), targets.numel())}};
    return output;
  };
  Evaluator tensors(accelerator, {{"first", first}, {"again", first}}, step);
  CATCH_CHECK(tensors.set_names() == std::vector<std::string>{"again", "first"});
  const EvaluationResults expected{{"again", {{"loss", 2.0}, {"target", 2.0}}},
                                   {"first", {{"loss", 2.0}, {"target", 2.0}}}};
  CATCH_CHECK(tensors.run(model) == expected);
  CATCH_CHECK(tensors.run(model) == expected);

  const auto on_examples = [](OneWeight& model, const Example& batch) { return follow(model, batch); };
  Evaluator mixed(accelerator, {{"loader", second}, {"vector", examples}}, on_examples);
  const auto results = mixed.run(model);
  CATCH_CHECK(results.at("loader").at("loss") == Approx((1 + 0 + 1 + 4) / 8.0));
  CATCH_CHECK(results.at("vector").at("loss") == 0.5);
}

CATCH_TEST_CASE("the Step runs in eval mode, without gradients, on placed batches") {
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  torch::nn::Sequential model(torch::nn::Dropout(0.5), torch::nn::Linear(2, 1));
  model->to(torch::kDouble);
  const Batches set{torch::ones({1, 2}, torch::kFloat)};
  const auto step = [](torch::nn::SequentialImpl& net, const at::Tensor& x) -> StepOutput {
    CATCH_CHECK(x.scalar_type() == torch::kDouble);
    CATCH_CHECK_FALSE(torch::GradMode::is_enabled());
    for (const auto& module : net.modules()) CATCH_CHECK_FALSE(module->is_training());
    return {.loss = net.forward(x).mean(), .num_samples = x.size(0)};
  };
  Evaluator evaluator(accelerator, {{"validation", set}}, step);
  (void)evaluator.run(*model);
  CATCH_CHECK(torch::GradMode::is_enabled());
  for (const auto& module : model->modules()) CATCH_CHECK(module->is_training());
}

namespace {

/// A module in a module in a module.
struct Nested : torch::nn::Module {
  struct Middle : torch::nn::Module {
    torch::nn::Dropout inner = register_module("inner", torch::nn::Dropout(0.5));
  };
  std::shared_ptr<Middle> first = register_module("first", std::make_shared<Middle>());
  std::shared_ptr<Middle> second = register_module("second", std::make_shared<Middle>());
};

}  // namespace

CATCH_TEST_CASE("modes, gradients and random numbers come back when the Step throws") {
  Accelerator accelerator({.device = at::kCPU});
  Nested model;
  model.first->eval();
  const Batches set = numbered_batches(1);
  const auto step = [](Nested&, const at::Tensor&) -> StepOutput {
    (void)torch::rand({10});
    throw std::runtime_error("inside");
  };
  Evaluator evaluator(accelerator, {{"validation", set}}, step);
  torch::manual_seed(8);
  const auto expected = torch::rand({3});
  torch::manual_seed(8);
  CATCH_CHECK_THROWS_WITH(evaluator.run(model), "inside");
  CATCH_CHECK(torch::equal(torch::rand({3}), expected));
  CATCH_CHECK(torch::GradMode::is_enabled());
  CATCH_CHECK(model.is_training());
  CATCH_CHECK_FALSE(model.first->inner->is_training());
  CATCH_CHECK(model.second->inner->is_training());
}

CATCH_TEST_CASE("a mode is a module's own, also where a child trains inside a parent that does not") {
  Nested model;
  model.eval();
  model.first->inner->train();
  { const lockstep::detail::EvaluationScope scope(model, nullptr, at::kCPU); }
  CATCH_CHECK_FALSE(model.is_training());
  CATCH_CHECK_FALSE(model.first->is_training());
  CATCH_CHECK(model.first->inner->is_training());
  CATCH_CHECK_FALSE(model.second->inner->is_training());
}

CATCH_TEST_CASE("batches without samples are passed over, and a mean over nothing is NaN") {
  Accelerator accelerator({.device = at::kCPU});
  OneWeight model;
  const Batches set = numbered_batches(2);
  Evaluator evaluator(accelerator, {{"validation", set}}, [](OneWeight&, const at::Tensor&) -> StepOutput {
    return {.loss = {}, .num_samples = 0};
  });
  CATCH_CHECK(std::isnan(evaluator.run(model).at("validation").at("loss")));
}

CATCH_TEST_CASE("a loss that is not finite is reported, not refused") {
  Accelerator accelerator({.device = at::kCPU});
  OneWeight model;
  const Batches set = numbered_batches(1);
  Evaluator evaluator(accelerator, {{"validation", set}},
                      [](OneWeight& model, const at::Tensor&) -> StepOutput {
                        return {.loss = 1 / model.w, .num_samples = 1};
                      });
  CATCH_CHECK(std::isinf(evaluator.run(model).at("validation").at("loss")));
}

CATCH_TEST_CASE("what cannot be evaluated is refused") {
  Accelerator accelerator({.device = at::kCPU});
  OneWeight model;
  const Batches set = numbered_batches(1);
  const Batches empty;
  const auto id = [&](const Batches& batches, StepOutput output) {
    Evaluator evaluator(accelerator, {{"validation", batches}},
                        [&](OneWeight&, const at::Tensor&) { return output; });
    return thrown_id<Error>([&] { (void)evaluator.run(model); });
  };
  CATCH_CHECK(id(empty, {}) == "empty-evaluation-set");
  CATCH_CHECK(id(set, {.loss = model.w, .num_samples = {}}) == "missing-num-samples");
  CATCH_CHECK(id(set, {.loss = model.w, .num_samples = -5}) == "negative-num-samples");
  CATCH_CHECK(id(set, {.loss = {}, .num_samples = 1}) == "undefined-loss");
  CATCH_CHECK(id(set, {.loss = torch::ones({2}), .num_samples = 1}) == "loss-not-scalar");
  CATCH_CHECK(id(set, {.loss = torch::tensor(1), .num_samples = 1}) == "loss-not-floating");
  CATCH_CHECK(id(set, {.loss = model.w.detach(), .num_samples = 1}).empty());
}
