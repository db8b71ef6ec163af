#include "loop/optimizer_update.hpp"

#include <cmath>
#include <limits>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;

namespace {

/// Parameters `a` and `b` (and more on request) with SGD of rate 1, and a window to put gradients into.
struct Update {
  explicit Update(std::int64_t count = 2, torch::optim::SGDOptions options = {1.0}, double loss_scale = 1)
      : window(8, 0, {.update = 4}, loss_scale) {
    for (std::int64_t i = 0; i < count; ++i) {
      parameters.emplace_back(std::string(1, static_cast<char>('a' + i)), torch::zeros({2}).requires_grad_());
    }
    std::vector<at::Tensor> tensors;
    for (const auto& parameter : parameters) tensors.push_back(parameter.second);
    optimizer.emplace(tensors, options);
    adapter.emplace(*optimizer, parameters);
    adapter->arena().open_window();
  }

  /// Adds a microbatch whose gradient of parameter i is `gradients[i]` for each element.
  void add(const std::vector<float>& gradients, std::int64_t samples) {
    auto loss = torch::zeros({});
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      // By a hook, so that the loss stays finite whatever the gradient.
      const auto value = gradients[i];
      auto copy = parameters[i].second.clone();
      copy.register_hook(
          [value](const at::Tensor& gradient) { return torch::full_like(gradient, value) * gradient; });
      loss = loss + copy.sum();
    }
    window.add({.loss = loss, .num_samples = samples});
    adapter->arena().after_backward();
    adapter->arena().close_window();
  }

  UpdateOutcome run(std::optional<double> max_grad_norm = {}, WeightAverage* average = nullptr,
                    LossScaler* scaler = nullptr) {
    return optimizer_update(window, window.samples(), *adapter, average, {.max_norm = max_grad_norm}, scaler);
  }

  [[nodiscard]] float value(std::size_t parameter) const {
    return parameters[parameter].second[0].item<float>();
  }

  NamedTensors parameters;
  std::optional<torch::optim::SGD> optimizer;
  std::optional<OptimizerAdapter> adapter;
  AccumulationWindow window;
};

}  // namespace

CATCH_TEST_CASE("the optimizer gets the mean gradient over the window's samples") {
  Update update;
  update.add({1, 2}, 3);
  update.add({5, 2}, 1);
  const auto outcome = update.run();
  CATCH_CHECK(outcome.result == UpdateResult::applied);
  CATCH_CHECK(update.value(0) == -2.0f);
  CATCH_CHECK(update.value(1) == -2.0f);
  CATCH_CHECK(outcome.gradient_norm == Approx(4.0));
}

CATCH_TEST_CASE("other ranks' samples are in the denominator") {
  Update update;
  update.add({4, 4}, 2);
  (void)optimizer_update(update.window, 8, *update.adapter, nullptr, {});
  CATCH_CHECK(update.value(0) == -1.0f);
}

CATCH_TEST_CASE("the norm is the one before clipping, and the clipped gradient has the given norm") {
  Update update;
  update.add({3, 4}, 1);
  const auto outcome = update.run(0.5);
  const double norm = std::sqrt(2 * 9 + 2 * 16);
  CATCH_CHECK(outcome.gradient_norm == Approx(norm));
  CATCH_CHECK(update.value(0) == Approx(-3 * 0.5 / norm).epsilon(1e-6));
  CATCH_CHECK(update.value(1) == Approx(-4 * 0.5 / norm).epsilon(1e-6));
}

CATCH_TEST_CASE("single elements are clipped once for the window, after the division by its samples and the norm") {
  Update update;
  update.add({8, -2}, 1);
  update.add({4, -4}, 3);
  const auto outcome =
      optimizer_update(update.window, update.window.samples(), *update.adapter, nullptr, {.max_value = 3.75});
  CATCH_CHECK(outcome.gradient_norm == Approx(std::sqrt(2 * 25 + 2 * 3.5 * 3.5)));
  CATCH_CHECK(update.value(0) == -3.75f);
  CATCH_CHECK(update.value(1) == 3.5f);

  Update negative;
  negative.add({-9, 1}, 1);
  (void)optimizer_update(negative.window, 1, *negative.adapter, nullptr, {.max_norm = 1e6, .max_value = 2});
  CATCH_CHECK(negative.value(0) == 2.0f);
  CATCH_CHECK(negative.value(1) == -1.0f);
}

CATCH_TEST_CASE("a gradient below the limit is not changed by a bit") {
  Update update;
  update.add({0.1f, 0.7f}, 1);
  (void)update.run(100.0);
  CATCH_CHECK(update.value(0) == -0.1f);
  CATCH_CHECK(update.value(1) == -0.7f);
}

CATCH_TEST_CASE("clipping follows torch.nn.utils.clip_grad_norm_ to a relative 1e-6") {
  torch::manual_seed(6);
  Update ours, theirs;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto gradient = torch::randn({2}) * 10;
    ours.parameters[i].second.mutable_grad() = gradient.clone();
    theirs.parameters[i].second.mutable_grad() = gradient.clone();
  }
  const double norm =
      torch::nn::utils::clip_grad_norm_({theirs.parameters[0].second, theirs.parameters[1].second}, 1.0);
  theirs.optimizer->step();

  ours.adapter->arena().after_backward();
  ours.adapter->arena().close_window();
  AccumulationWindow window(1, 1, {});
  const auto outcome = optimizer_update(window, 1, *ours.adapter, nullptr, {.max_norm = 1.0});
  CATCH_CHECK(outcome.gradient_norm == Approx(norm).epsilon(1e-6));
  for (std::size_t i = 0; i < 2; ++i) {
    CATCH_CHECK(torch::allclose(ours.parameters[i].second, theirs.parameters[i].second, 1e-6, 0));
  }
}

CATCH_TEST_CASE("a window without samples is skipped and changes nothing") {
  Update update(2, torch::optim::SGDOptions(1).weight_decay(1));
  {
    const torch::NoGradGuard no_grad;
    update.parameters[0].second.fill_(3);
  }
  update.window.add({.loss = {}, .num_samples = 0});
  WeightAverage average({.decay = 0.5}, update.parameters, &update.adapter->arena());
  const auto outcome = update.run(1.0, &average);
  CATCH_CHECK(outcome.result == UpdateResult::skipped_empty);
  CATCH_CHECK(update.value(0) == 3.0f);
  CATCH_CHECK_FALSE(average.started());
}

CATCH_TEST_CASE("parameters without a gradient are left alone, decay included") {
  Update update(2, torch::optim::SGDOptions(1).weight_decay(0.5));
  {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : update.parameters) parameter.second.fill_(2);
  }
  update.add({1}, 1);
  CATCH_CHECK(update.run().result == UpdateResult::applied);
  CATCH_CHECK(update.value(0) == 2.0f - (1.0f + 0.5f * 2.0f));
  CATCH_CHECK(update.value(1) == 2.0f);
}

CATCH_TEST_CASE("a gradient that is not finite names the first bad parameters and changes nothing") {
  using Limits = std::numeric_limits<float>;
  const float bad = GENERATE(Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN());
  Update update(8, torch::optim::SGDOptions(1).momentum(0.9));
  update.add({1, bad, 1, bad, bad, bad, bad, bad}, 1);
  WeightAverage average({.decay = 0.5}, update.parameters, &update.adapter->arena());
  CATCH_CHECK_THROWS_AS(update.run({}, &average), NonFiniteError);
  CATCH_CHECK_THROWS_WITH(update.run(1.0, &average), Contains("[non-finite-gradient]") &&
                                                         Contains("gradient of b, d, e, f, g and 1 more") &&
                                                         Contains("at update 4, rank 0"));
  for (std::size_t i = 0; i < 8; ++i) CATCH_CHECK(update.value(i) == 0.0f);
  CATCH_CHECK(update.optimizer->state().empty());
  CATCH_CHECK_FALSE(average.started());
}

CATCH_TEST_CASE("finite gradients whose squares overflow are no error, and are clipped by their exact norm") {
  Update update;
  update.add({1e25f, 1e25f}, 1);
  const auto outcome = update.run(2.0);
  CATCH_CHECK(outcome.result == UpdateResult::applied);
  CATCH_CHECK(outcome.gradient_norm == Approx(2e25).epsilon(1e-6));
  CATCH_CHECK(update.value(0) == Approx(-1.0).epsilon(1e-6));
}

CATCH_TEST_CASE("the average moves after the optimizer's step, from the weights before it") {
  Update update;
  WeightAverage average({.decay = 0.75}, update.parameters, &update.adapter->arena());
  update.add({4, 8}, 1);
  (void)update.run({}, &average);
  CATCH_CHECK(average.named()[0].second[0].item<float>() == -1.0f);
  CATCH_CHECK(average.named()[1].second[0].item<float>() == -2.0f);
}

namespace {

/// A scaler, and an update whose window was opened with its scale.
struct ScaledUpdate {
  explicit ScaledUpdate(double scale, std::int64_t growth_interval = 2000)
      : scaler({.initial_scale = scale, .growth_interval = growth_interval}),
        update(2, torch::optim::SGDOptions(1).momentum(0.5).weight_decay(0.1), scale),
        average({.decay = 0.5}, update.parameters, &update.adapter->arena()) {}

  UpdateOutcome run(std::optional<double> max_grad_norm = {}) {
    return update.run(max_grad_norm, &average, &scaler);
  }

  LossScaler scaler;
  Update update;
  WeightAverage average;
};

}  // namespace

CATCH_TEST_CASE("the loss scale is divided out before the norm is measured and clipped") {
  ScaledUpdate scaled(1024);
  scaled.update.add({3, 4}, 2);
  scaled.update.add({3, 4}, 1);
  CATCH_CHECK(scaled.update.parameters[0].second.grad()[0].item<float>() == 3 * 1024 * 1.5f);
  const auto outcome = scaled.run(0.5);
  const double norm = std::sqrt(2 * 9 + 2 * 16);
  CATCH_CHECK(outcome.result == UpdateResult::applied);
  CATCH_CHECK(outcome.gradient_norm == Approx(norm));
  CATCH_CHECK(scaled.update.value(0) == Approx(-3 * 0.5 / norm).epsilon(1e-6));
  CATCH_CHECK(scaled.scaler.scale() == 1024);
  CATCH_CHECK(scaled.scaler.growth_tracker() == 1);
}

CATCH_TEST_CASE("an update may make the scale grow") {
  ScaledUpdate scaled(1024, /*growth_interval=*/1);
  scaled.update.add({1, 1}, 1);
  CATCH_CHECK(scaled.run().result == UpdateResult::applied);
  CATCH_CHECK(scaled.scaler.scale() == 2048);
}

CATCH_TEST_CASE("an overflow skips the update, lowers the scale and changes nothing else") {
  using Limits = std::numeric_limits<float>;
  const float bad = GENERATE(Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN());
  ScaledUpdate scaled(1024);
  scaled.update.add({1, bad}, 1);
  CATCH_CHECK(scaled.run(1.0).result == UpdateResult::skipped_overflow);
  CATCH_CHECK(scaled.scaler.scale() == 512);
  CATCH_CHECK(scaled.scaler.growth_tracker() == 0);
  CATCH_CHECK(scaled.update.value(0) == 0);
  CATCH_CHECK(scaled.update.optimizer->state().empty());
  CATCH_CHECK_FALSE(scaled.average.started());
}

CATCH_TEST_CASE(
    "gradients that are finite, though their squares overflow, are no overflow of the loss scale") {
  ScaledUpdate scaled(1024);
  scaled.update.add({1e25f, 1e25f}, 1);
  const auto outcome = scaled.run(2.0);
  CATCH_CHECK(outcome.result == UpdateResult::applied);
  CATCH_CHECK(outcome.gradient_norm == Approx(2e25).epsilon(1e-6));
  CATCH_CHECK(scaled.update.value(1) == Approx(-1.0).epsilon(1e-6));
  CATCH_CHECK(scaled.scaler.scale() == 1024);
}

CATCH_TEST_CASE("an overflow at the smallest loss scale is an error that leaves the scaler too as it was") {
  ScaledUpdate scaled(smallest_loss_scale);
  scaled.update.add({1, std::numeric_limits<float>::infinity()}, 1);
  CATCH_CHECK_THROWS_AS(scaled.run(), NonFiniteError);
  CATCH_CHECK_THROWS_WITH(scaled.run(), Contains("[endless-overflow]") &&
                                            Contains("gradient of b overflows") &&
                                            Contains("at update 4, rank 0") && Contains("6.1035"));
  CATCH_CHECK(scaled.scaler.scale() == smallest_loss_scale);
  CATCH_CHECK(scaled.update.value(0) == 0);
}

CATCH_TEST_CASE("a window without samples leaves the loss scale alone") {
  ScaledUpdate scaled(1024, /*growth_interval=*/1);
  scaled.update.window.add({.loss = {}, .num_samples = 0});
  CATCH_CHECK(scaled.run().result == UpdateResult::skipped_empty);
  CATCH_CHECK(scaled.scaler.scale() == 1024);
  CATCH_CHECK(scaled.scaler.growth_tracker() == 0);
}
