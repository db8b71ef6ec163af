#include "lockstep/optim/adamw.hpp"

#include <cmath>
#include <limits>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;

namespace {

/// Two groups of one number each: 2 with weight decay 0.5, and 2 without.
struct Pair {
  at::Tensor decayed = torch::full({1}, 2, torch::kDouble).requires_grad_();
  at::Tensor other = torch::full({1}, 2, torch::kDouble).requires_grad_();
  ParameterGroups groups = {{.name = "decay", .parameters = {{"w", decayed}}, .weight_decay = 0.5},
                            {.name = "no_decay", .parameters = {{"b", other}}, .weight_decay = 0}};

  void step(Optimizer& optimizer, double gradient) const {
    for (const auto& parameter : {decayed, other})
      parameter.mutable_grad() = torch::full({1}, gradient, torch::kDouble);
    optimizer.step();
  }
};

double value(const at::Tensor& tensor) { return tensor.item<double>(); }

std::string refusal(const AdamOptions& options) {
  return test::thrown_id<ConfigError>([&] { AdamW(Pair().groups, options); });
}

}  // namespace

// The first update's bias-corrected moments are the gradient and its square, so that it moves by the rate.
// From the second on, with a gradient of 0, the mean is b1 (1 - b1) g / (1 - b1^2) and the square alike.
CATCH_TEST_CASE("two updates of AdamW are those of the paper, each group with its weight decay") {
  Pair pair;
  AdamW optimizer(pair.groups, {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.75, .eps = 0});
  pair.step(optimizer, 3);
  CATCH_CHECK(value(pair.decayed) == Approx(2 * (1 - 0.1 * 0.5) - 0.1).epsilon(1e-14));
  CATCH_CHECK(value(pair.other) == Approx(2 - 0.1).epsilon(1e-14));
  pair.step(optimizer, 0);
  const double mean = 0.5 * 0.5 * 3 / (1 - 0.25);
  const double square = 0.75 * 0.25 * 9 / (1 - 0.5625);
  CATCH_CHECK(value(pair.other) == Approx(1.9 - 0.1 * mean / std::sqrt(square)).epsilon(1e-14));
  CATCH_CHECK(value(pair.decayed) == Approx(1.8 * 0.95 - 0.1 * mean / std::sqrt(square)).epsilon(1e-14));
}

CATCH_TEST_CASE("Adam adds weight decay to the gradient, where it is normalised away") {
  Pair pair;
  Adam optimizer(pair.groups, {.lr = 0.1, .eps = 1e-3});
  pair.step(optimizer, 3);
  CATCH_CHECK(value(pair.decayed) == Approx(2 - 0.1 * 4 / (4 + 1e-3)).epsilon(1e-14));
  CATCH_CHECK(value(pair.other) == Approx(2 - 0.1 * 3 / (3 + 1e-3)).epsilon(1e-14));
}

CATCH_TEST_CASE("amsgrad divides by the largest second moment so far, and maximize goes up") {
  Pair pair;
  AdamW optimizer(
      pair.groups, {.lr = 0.1},
      {{"no_decay", {.lr = 0.1, .beta1 = 0, .beta2 = 0, .eps = 0, .amsgrad = true, .maximize = true}}});
  pair.step(optimizer, 4);
  CATCH_CHECK(value(pair.other) == Approx(2.1));
  pair.step(optimizer, 1);
  CATCH_CHECK(value(pair.other) == Approx(2.1 + 0.1 / 4));
  CATCH_CHECK(optimizer.state_names(0) == std::vector<std::string>{"exp_avg", "exp_avg_sq"});
  CATCH_CHECK(optimizer.state_names(1) ==
              std::vector<std::string>{"exp_avg", "exp_avg_sq", "max_exp_avg_sq"});
}

CATCH_TEST_CASE("options of Adam are read and set by Torch's names, for each group") {
  Pair pair;
  pair.groups[0].lr = 0.25;
  AdamW optimizer(pair.groups, {.lr = 0.5, .beta1 = 0.8}, {{"no_decay", {.lr = 0.75, .eps = 1e-4}}});
  CATCH_CHECK(optimizer.kind() == "AdamW");
  CATCH_CHECK(Adam(pair.groups).kind() == "Adam");
  CATCH_CHECK((optimizer.options(0) == OptionValues{{"lr", 0.25},
                                                    {"betas", std::vector<double>{0.8, 0.999}},
                                                    {"eps", 1e-8},
                                                    {"weight_decay", 0.5},
                                                    {"amsgrad", false},
                                                    {"maximize", false}}));
  const OptionValues set = {{"lr", 0.125},     {"betas", std::vector<double>{0.5, 0.25}},
                            {"eps", 1e-2},     {"weight_decay", 0.75},
                            {"amsgrad", true}, {"maximize", true}};
  for (const auto& [name, option] : set) optimizer.set_option(1, name, option);
  optimizer.set_option(1, "foreach", true);  // an option of Torch's that changes no result
  CATCH_CHECK((optimizer.options(1) == set));
  CATCH_CHECK(std::get<double>(optimizer.options(0).at("eps")) == 1e-8);
}

CATCH_TEST_CASE("amsgrad may be turned on and off between updates, its maximum beginning at zero") {
  Pair pair;
  AdamW optimizer(pair.groups, {.lr = 0.1, .beta1 = 0, .beta2 = 0, .eps = 0});
  pair.step(optimizer, 4);
  optimizer.set_option(1, "amsgrad", true);
  pair.step(optimizer, 2);
  CATCH_CHECK(value(pair.other) == Approx(2 - 0.1 - 0.1));
  pair.step(optimizer, 1);
  CATCH_CHECK(value(pair.other) == Approx(2 - 0.1 - 0.1 - 0.1 / 2));
  CATCH_CHECK(optimizer.state().size() == 3 + 4);
  optimizer.set_option(1, "amsgrad", false);
  pair.step(optimizer, 1);
  CATCH_CHECK(value(pair.other) == Approx(2 - 0.1 - 0.1 - 0.1 / 2 - 0.1));
  CATCH_CHECK(optimizer.state().size() == 3 + 3);
}

CATCH_TEST_CASE("options that Adam cannot work with are refused, all of them in one message") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double lr : {-0.1, nan, infinity}) CATCH_CHECK(refusal({.lr = lr}) == "invalid-settings");
  for (const double beta : {-0.1, 1.0, nan}) {
    CATCH_CHECK(refusal({.beta1 = beta}) == "invalid-settings");
    CATCH_CHECK(refusal({.beta2 = beta}) == "invalid-settings");
  }
  for (const double eps : {-1e-8, nan, infinity}) CATCH_CHECK(refusal({.eps = eps}) == "invalid-settings");
  CATCH_CHECK(refusal({.lr = 0, .beta1 = 0, .beta2 = 0, .eps = 0}).empty());
  Pair pair;
  pair.groups[1].weight_decay = -0.5;
  CATCH_CHECK_THROWS_WITH(
      Adam(pair.groups, {.lr = -1}),
      Catch::Matchers::Contains("group decay of the optimizer has lr = -1") &&
          Catch::Matchers::Contains("group no_decay of the optimizer has weight_decay = -0.5"));
}

CATCH_TEST_CASE("options of a group that is not there, or a second rate for one, are refused") {
  Pair pair;
  CATCH_CHECK(test::thrown_id<ConfigError>([&] {
                AdamW(pair.groups, {}, {{"nodecay", {}}});
              }) == "unknown-group");
  pair.groups[0].lr = 0.1;
  CATCH_CHECK(test::thrown_id<ConfigError>([&] {
                AdamW(pair.groups, {}, {{"decay", {}}});
              }) == "invalid-settings");
  CATCH_CHECK_NOTHROW(AdamW(pair.groups, {}, {{"no_decay", {}}}));
}
