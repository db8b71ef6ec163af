#include "lockstep/optim/loss_scaler.hpp"

#include <ATen/ops/_amp_update_scale.h>

#include <vector>

#include "support/catch.hpp"

using namespace lockstep;

namespace {

/// torch's own arithmetic, which torch.amp.GradScaler calls.
struct TorchScaler {
  explicit TorchScaler(const LossScalerOptions& options)
      : options(options), scale(torch::tensor(static_cast<float>(options.initial_scale))) {}

  void update(bool overflow) {
    at::_amp_update_scale_(scale, tracker, torch::tensor(overflow ? 1.0f : 0.0f), options.growth_factor,
                           options.backoff_factor, options.growth_interval);
  }

  LossScalerOptions options;
  at::Tensor scale;
  at::Tensor tracker = torch::zeros({}, torch::kInt);
};

void update(LossScaler& scaler, bool overflow) { overflow ? scaler.after_overflow() : scaler.after_update(); }

}  // namespace

CATCH_TEST_CASE("the defaults are those of torch.amp.GradScaler") {
  const LossScaler scaler({});
  CATCH_CHECK(scaler.scale() == 65536);
  CATCH_CHECK(scaler.growth_tracker() == 0);
  CATCH_CHECK(LossScalerOptions{}.growth_interval == 2000);
}

CATCH_TEST_CASE("the scale grows after its interval and backs off at once, as Python's does") {
  // torch.amp.GradScaler("cpu", init_scale=1000, growth_factor=1.7, backoff_factor=0.3, growth_interval=2) of
  // torch 2.13.0 over this course: x is an overflow.
  LossScaler scaler(
      {.initial_scale = 1000, .growth_factor = 1.7, .backoff_factor = 0.3, .growth_interval = 2});
  const std::string course = "..x.....xx..";
  const std::vector<std::pair<double, int>> python = {
      {1000.0f, 1}, {1700.0f, 0}, {510.0f, 0},  {510.0f, 1},   {867.0f, 0},   {867.0f, 1},
      {1473.9f, 0}, {1473.9f, 1}, {442.17f, 0}, {132.651f, 0}, {132.651f, 1}, {225.5067f, 0}};
  for (std::size_t i = 0; i < course.size(); ++i) {
    CATCH_CAPTURE(i);
    update(scaler, course[i] == 'x');
    CATCH_CHECK(scaler.scale() == python[i].first);
    CATCH_CHECK(scaler.growth_tracker() == python[i].second);
  }
}

CATCH_TEST_CASE("the arithmetic is torch's to the bit, up to where a float ends") {
  const LossScalerOptions options{
      .initial_scale = 1e36, .growth_factor = 3.3, .backoff_factor = 0.7, .growth_interval = 3};
  LossScaler ours(options);
  TorchScaler theirs(options);
  torch::manual_seed(1);
  for (int i = 0; i < 300; ++i) {
    const bool overflow = torch::rand({}).item<double>() < 0.15;
    update(ours, overflow);
    theirs.update(overflow);
    CATCH_REQUIRE(ours.scale() == theirs.scale.item<double>());
    CATCH_REQUIRE(ours.growth_tracker() == theirs.tracker.item<std::int64_t>());
  }
}

CATCH_TEST_CASE("no overflow takes the scale below the smallest") {
  LossScaler scaler({.initial_scale = 1, .backoff_factor = 1e-3});
  scaler.after_overflow();
  CATCH_CHECK(scaler.scale() == static_cast<double>(1e-3f));
  scaler.after_overflow();
  CATCH_CHECK(scaler.scale() == smallest_loss_scale);
}

CATCH_TEST_CASE("a restored scaler goes on where it was") {
  LossScaler scaler({.growth_interval = 3});
  scaler.restore(512, 2);
  scaler.after_update();
  CATCH_CHECK(scaler.scale() == 1024);
  CATCH_CHECK(scaler.growth_tracker() == 0);
}
