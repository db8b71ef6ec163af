#include "lockstep/optim/sgd.hpp"

#include <limits>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;

namespace {

/// The number 1, with weight decay `decay`.
struct One {
  explicit One(double decay = 0) : groups{{.name = "all", .parameters = {{"w", w}}, .weight_decay = decay}} {}

  double step(Optimizer& optimizer, double gradient) const {
    w.mutable_grad() = torch::full({1}, gradient, torch::kDouble);
    optimizer.step();
    return w.item<double>();
  }

  at::Tensor w = torch::ones({1}, torch::kDouble).requires_grad_();
  ParameterGroups groups;
};

std::string refusal(const SGDOptions& options) {
  return test::thrown_id<ConfigError>([&] { SGD(One().groups, options); });
}

}  // namespace

CATCH_TEST_CASE("plain SGD moves by rate times gradient and keeps no state") {
  One one(0.5);
  SGD optimizer(one.groups, {.lr = 0.5});
  CATCH_CHECK(one.step(optimizer, 1) == 1 - 0.5 * (1 + 0.5));
  CATCH_CHECK(optimizer.state_names(0).empty());
  CATCH_CHECK(optimizer.state().empty());
  One up(0.5);
  SGD maximizing(up.groups, {.lr = 0.5, .maximize = true});
  CATCH_CHECK(up.step(maximizing, 1) == 1 - 0.5 * (-1 + 0.5));
}

CATCH_TEST_CASE("the momentum buffer begins as the first gradient, undamped") {
  One one;
  SGD optimizer(one.groups, {.lr = 1, .momentum = 0.5, .dampening = 0.25});
  CATCH_CHECK(one.step(optimizer, 4) == 1 - 4);
  CATCH_CHECK(one.step(optimizer, 8) == -3 - (0.5 * 4 + 0.75 * 8));
  CATCH_CHECK(optimizer.state_names(0) == std::vector<std::string>{"momentum_buffer"});
  CATCH_CHECK(optimizer.state()[0].first == "w/momentum_buffer");
  CATCH_CHECK(optimizer.state()[0].second.item<double>() == 8);
}

CATCH_TEST_CASE("momentum may be turned on and off between updates") {
  One one;
  SGD optimizer(one.groups, {.lr = 1});
  CATCH_CHECK(one.step(optimizer, 4) == 1 - 4);
  optimizer.set_option(0, "momentum", 0.5);
  CATCH_CHECK(one.step(optimizer, 4) == -3 - 4);
  CATCH_CHECK(one.step(optimizer, 4) == -7 - (0.5 * 4 + 4));
  optimizer.set_option(0, "momentum", 0.0);
  CATCH_CHECK(one.step(optimizer, 4) == -13 - 4);
  CATCH_CHECK(optimizer.state().empty());
}

CATCH_TEST_CASE("Nesterov looks ahead along the momentum") {
  One one;
  SGD optimizer(one.groups, {.lr = 1, .momentum = 0.5, .nesterov = true});
  CATCH_CHECK(one.step(optimizer, 4) == 1 - (4 + 0.5 * 4));
  CATCH_CHECK(one.step(optimizer, 8) == -5 - (8 + 0.5 * (0.5 * 4 + 8)));
}

CATCH_TEST_CASE("options of SGD are read and set by Torch's names, for each group") {
  One one(0.5);
  one.groups.push_back({.name = "own", .parameters = {{"v", torch::ones({1}).requires_grad_()}}});
  SGD optimizer(one.groups, {.lr = 0.5, .momentum = 0.25}, {{"own", {.lr = 2}}});
  CATCH_CHECK(optimizer.kind() == "SGD");
  CATCH_CHECK((optimizer.options(0) == OptionValues{{"lr", 0.5},
                                                    {"momentum", 0.25},
                                                    {"dampening", 0.0},
                                                    {"weight_decay", 0.5},
                                                    {"nesterov", false},
                                                    {"maximize", false}}));
  const OptionValues set = {{"lr", 0.125},          {"momentum", 0.75}, {"dampening", 0.5},
                            {"weight_decay", 0.25}, {"nesterov", true}, {"maximize", true}};
  for (const auto& [name, option] : set) optimizer.set_option(1, name, option);
  optimizer.set_option(1, "foreach", true);  // an option of Torch's that changes no result
  CATCH_CHECK((optimizer.options(1) == set));
  CATCH_CHECK(std::get<double>(optimizer.options(0).at("lr")) == 0.5);
}

CATCH_TEST_CASE("options that SGD cannot work with are refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {-0.1, nan, std::numeric_limits<double>::infinity()}) {
    CATCH_CHECK(refusal({.lr = bad}) == "invalid-settings");
    CATCH_CHECK(refusal({.momentum = bad}) == "invalid-settings");
    CATCH_CHECK(refusal({.momentum = 0.9, .dampening = bad}) == "invalid-settings");
    CATCH_CHECK(test::thrown_id<ConfigError>([&] { SGD{One(bad).groups}; }) == "invalid-settings");
  }
  CATCH_CHECK(refusal({.nesterov = true}) == "invalid-settings");
  CATCH_CHECK(refusal({.momentum = 0.9, .dampening = 0.1, .nesterov = true}) == "invalid-settings");
  CATCH_CHECK(refusal({.lr = 0, .momentum = 0.9, .nesterov = true}).empty());
  CATCH_CHECK(test::thrown_id<ConfigError>([&] {
                SGD(One().groups, {}, {{"none", {}}});
              }) == "unknown-group");
}
