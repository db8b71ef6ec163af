#include "lockstep/loop/accumulation_window.hpp"

#include <limits>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using Means = std::vector<std::pair<std::string, double>>;

namespace {

at::Tensor weight() { return torch::tensor(2.0, torch::TensorOptions(torch::kDouble).requires_grad(true)); }

AccumulationWindow window(std::int64_t size = 2, std::int64_t loss_unit = 0) {
  return {size, loss_unit, {.update = 7, .rank = 3}};
}

}  // namespace

CATCH_TEST_CASE("gradients add up weighted by samples, in units of the first microbatch") {
  const auto w = weight();
  auto accumulated = window(3);
  accumulated.add({.loss = w * 1, .num_samples = 2});
  CATCH_CHECK(w.grad().item<double>() == 1.0);
  accumulated.add({.loss = w * 10, .num_samples = 3});
  CATCH_CHECK(w.grad().item<double>() == 1.0 + 10 * 3 / 2.0);
  accumulated.add({.loss = w * 100, .num_samples = 1});
  CATCH_CHECK(w.grad().item<double>() == 1.0 + 15.0 + 100 * 1 / 2.0);
  CATCH_CHECK(accumulated.loss_unit() == 2);
  CATCH_CHECK(accumulated.samples() == 6);
  CATCH_CHECK(accumulated.microbatches() == 3);
  CATCH_CHECK(accumulated.full());
  auto totals = accumulated.totals();
  // (2 * 2 + 3 * 20 + 1 * 200) / 6
  CATCH_CHECK(totals.means() == Means{{"loss", 44.0}});
}

CATCH_TEST_CASE("the unit given stays, so that a resumed run rounds as the first did") {
  const auto w = weight();
  auto resumed = window(1, 4);
  resumed.add({.loss = w, .num_samples = 1});
  CATCH_CHECK(w.grad().item<double>() == 0.25);
  CATCH_CHECK(resumed.loss_unit() == 4);
}

CATCH_TEST_CASE("a microbatch of the unit's size is not multiplied at all") {
  // 0.1 * 3 / 3 would not be 0.1 again.
  const auto w = weight();
  auto exact = window(1);
  exact.add({.loss = w * 0.1, .num_samples = 3});
  CATCH_CHECK(w.grad().item<double>() == 0.1);
}

CATCH_TEST_CASE("a loss scale goes into every gradient, in one multiplication with the weight") {
  const auto w = weight();
  AccumulationWindow scaled(3, 3, {}, /*loss_scale=*/1024);
  scaled.add({.loss = w, .num_samples = 3});
  CATCH_CHECK(w.grad().item<double>() == 1024);
  scaled.add({.loss = w, .num_samples = 1});
  CATCH_CHECK(w.grad().item<double>() == 1024 + 1024 * (1 / 3.0));
  auto totals = scaled.totals();
  CATCH_CHECK(totals.means() == Means{{"loss", 2.0}});
}

CATCH_TEST_CASE("num_samples may be an integer tensor, such as a count of tokens") {
  const auto w = weight();
  auto counted = window(3);
  counted.add({.loss = w * 1, .num_samples = torch::tensor({1, 0, 1}).ne(0).sum()});
  counted.add({.loss = w.view({1, 1}) * 10, .num_samples = torch::tensor({3}, torch::kInt)});
  counted.add({.loss = w * std::numeric_limits<double>::quiet_NaN(), .num_samples = torch::tensor(0)});
  CATCH_CHECK(w.grad().item<double>() == 1.0 + 10 * 3 / 2.0);
  CATCH_CHECK(counted.samples() == 5);
  auto totals = counted.totals();
  CATCH_CHECK(totals.means() == Means{{"loss", (2 * 2.0 + 3 * 20.0) / 5}});
}

CATCH_TEST_CASE("a count read with the loss is exact beyond what single precision holds") {
  const auto w = torch::tensor(0.5f, torch::requires_grad());
  auto counted = window(1);
  counted.add({.loss = w * 1, .num_samples = torch::tensor(16777217)});
  CATCH_CHECK(counted.samples() == 16777217);
}

CATCH_TEST_CASE("a microbatch without samples fills the window and adds nothing, whatever its loss") {
  const auto w = weight();
  auto empty = window();
  empty.add({.loss = w * std::numeric_limits<double>::quiet_NaN(), .num_samples = 0});
  empty.add({.loss = {}, .num_samples = torch::tensor(0), .metrics = {{"accuracy", MeanMetric(1.0, 1)}}});
  CATCH_CHECK_FALSE(w.grad().defined());
  CATCH_CHECK(empty.full());
  CATCH_CHECK(empty.samples() == 0);
  CATCH_CHECK(empty.loss_unit() == 0);
  CATCH_CHECK(empty.totals().empty());
}

CATCH_TEST_CASE("a loss may be of any shape of one element, and may be the parameter itself") {
  const auto w = weight();
  auto shapes = window();
  shapes.add({.loss = (w * 3).view({1, 1}), .num_samples = 1});
  shapes.add({.loss = w, .num_samples = 1});
  CATCH_CHECK(w.grad().item<double>() == 4.0);
}

CATCH_TEST_CASE("a Step that breaks its contract is told which rule, and the microbatch is not counted") {
  const auto w = weight();
  auto broken = window();
  const auto id = [&](StepOutput output) { return test::thrown_id<StepError>([&] { broken.add(output); }); };
  CATCH_CHECK(id({.loss = w, .num_samples = {}}) == "missing-num-samples");
  CATCH_CHECK(id({.loss = w, .num_samples = -2}) == "negative-num-samples");
  CATCH_CHECK(id({.loss = w, .num_samples = at::Tensor()}) == "missing-num-samples");
  CATCH_CHECK(id({.loss = w, .num_samples = torch::tensor(-1)}) == "negative-num-samples");
  CATCH_CHECK(id({.loss = w, .num_samples = torch::tensor(2.0)}) == "invalid-num-samples");
  CATCH_CHECK(id({.loss = w, .num_samples = torch::tensor({1, 1})}) == "invalid-num-samples");
  CATCH_CHECK(id({.loss = {}, .num_samples = torch::tensor(1)}) == "undefined-loss");
  CATCH_CHECK(id({.loss = {}, .num_samples = 1}) == "undefined-loss");
  CATCH_CHECK(id({.loss = w * torch::ones({2}), .num_samples = 1}) == "loss-not-scalar");
  CATCH_CHECK(id({.loss = torch::tensor(1), .num_samples = 1}) == "loss-not-floating");
  CATCH_CHECK(id({.loss = w.detach(), .num_samples = 1}) == "loss-without-gradient");
  CATCH_CHECK_FALSE(w.grad().defined());
  CATCH_CHECK(id({.loss = w, .num_samples = 1, .metrics = {{"loss", MeanMetric(1.0, 1)}}}) ==
              "invalid-metric");
  CATCH_CHECK(broken.microbatches() == 0);
}

CATCH_TEST_CASE("a loss that is not finite is refused with where it was") {
  const auto w = weight();
  auto broken = window();
  broken.add({.loss = w, .num_samples = 1});
  CATCH_CHECK_THROWS_AS(broken.add({.loss = w / 0, .num_samples = 1}), NonFiniteError);
  CATCH_CHECK_THROWS_WITH(
      broken.add({.loss = w / 0, .num_samples = 1}),
      Contains("[non-finite-loss]") && Contains("inf at update 7, microbatch 2") && Contains("rank 3"));
  CATCH_CHECK(w.grad().item<double>() == 1.0);
}
