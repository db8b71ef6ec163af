#include "lockstep/optim/weight_average.hpp"

#include <limits>
#include <stdexcept>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;

namespace {

/// Parameters `a` = 1 and `b` = [2, 3], and their average with decay 0.75.
struct Averaged {
  at::Tensor a = torch::tensor(1.0, torch::kDouble).requires_grad_();
  at::Tensor b = torch::tensor({2.0, 3.0}, torch::kDouble).requires_grad_();
  WeightAverage average{{.decay = 0.75}, {{"a", a}, {"b", b}}};

  void set(double value) {
    const torch::NoGradGuard no_grad;
    a.fill_(value);
    b.fill_(value);
  }
};

double value(const NamedTensors& tensors, std::size_t index = 0) {
  return tensors[index].second.flatten()[0].item<double>();
}

}  // namespace

CATCH_TEST_CASE("before it starts the average is the parameters themselves") {
  Averaged averaged;
  CATCH_CHECK_FALSE(averaged.average.started());
  averaged.set(5);
  const auto named = averaged.average.named();
  CATCH_REQUIRE(named.size() == 2);
  CATCH_CHECK(named[0].first == "a");
  CATCH_CHECK(named[1].first == "b");
  CATCH_CHECK(value(named) == 5);
}

CATCH_TEST_CASE("the average starts from the weights before the first update and follows its formula") {
  Averaged averaged;
  averaged.average.start();
  CATCH_CHECK(averaged.average.started());
  averaged.set(9);
  CATCH_CHECK(value(averaged.average.named()) == 1);
  averaged.average.update();
  CATCH_CHECK(value(averaged.average.named(), 0) == 0.75 * 1 + 0.25 * 9);
  CATCH_CHECK(value(averaged.average.named(), 1) == 0.75 * 2 + 0.25 * 9);
  averaged.average.start();  // once started, this does nothing
  averaged.set(5);
  averaged.average.update();
  CATCH_CHECK(value(averaged.average.named()) == 0.75 * 3 + 0.25 * 5);
  CATCH_CHECK_FALSE(averaged.average.named()[0].second.requires_grad());
}

CATCH_TEST_CASE("a weight on the device moves the average as one of the host does, and not where it is 0") {
  Averaged averaged;
  averaged.average.start();
  averaged.set(9);
  averaged.average.update_separate(torch::tensor(averaged.average.next_weight(), torch::kDouble));
  CATCH_CHECK(value(averaged.average.named(), 0) == 0.75 * 1 + 0.25 * 9);
  CATCH_CHECK(averaged.average.updates() == 1);
  (void)averaged.average.next_weight();
  averaged.average.update_separate(torch::tensor(0.0, torch::kDouble));
  averaged.average.take_back();
  CATCH_CHECK(value(averaged.average.named(), 0) == 0.75 * 1 + 0.25 * 9);
  CATCH_CHECK(averaged.average.updates() == 1);
}

CATCH_TEST_CASE("a swap puts the average into the model and the raw weights back, on an exception too") {
  Averaged averaged;
  averaged.average.start();
  averaged.set(9);
  averaged.average.update();
  const auto* identity = averaged.a.unsafeGetTensorImpl();
  try {
    const WeightAverage::Swap swap(averaged.average);
    CATCH_CHECK(averaged.a.item<double>() == 3);
    CATCH_CHECK(averaged.b[1].item<double>() == 0.75 * 3 + 0.25 * 9);
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  CATCH_CHECK(averaged.a.item<double>() == 9);
  CATCH_CHECK(averaged.b[1].item<double>() == 9);
  CATCH_CHECK(averaged.a.unsafeGetTensorImpl() == identity);
  CATCH_CHECK(averaged.a.requires_grad());
  CATCH_CHECK(value(averaged.average.named()) == 3);
}

CATCH_TEST_CASE("a swap before the start changes nothing") {
  Averaged averaged;
  const auto version = averaged.a._version();
  { const WeightAverage::Swap swap(averaged.average); }
  CATCH_CHECK(averaged.a._version() == version);
}

CATCH_TEST_CASE("a saved average is taken over by name") {
  Averaged averaged;
  averaged.average.load({{"b", torch::full({2}, 20.0, torch::kDouble)},
                         {"a", torch::tensor(10.0, torch::kDouble)},
                         {"a_buffer", torch::tensor(0.0)}},
                        /*updates=*/3);
  CATCH_CHECK(averaged.average.started());
  CATCH_CHECK(value(averaged.average.named(), 0) == 10);
  CATCH_CHECK(value(averaged.average.named(), 1) == 20);
  CATCH_CHECK(averaged.a.item<double>() == 1);
  averaged.average.load({}, 0);
  CATCH_CHECK_FALSE(averaged.average.started());
}

CATCH_TEST_CASE("a decay outside [0, 1) is refused") {
  const double decay = GENERATE(-0.1, 1.0, 1.5, std::numeric_limits<double>::quiet_NaN());
  CATCH_CHECK(test::thrown_id<ConfigError>([&] { WeightAverage({.decay = decay}, {}); }) ==
              "invalid-settings");
  CATCH_CHECK_NOTHROW(WeightAverage({.decay = 0}, {}));
}

namespace {

/// Parameters of several types in a flat arena, an objective's among them that is not averaged, and one
/// outside.
struct InArena {
  at::Tensor wide = torch::full({3, 5}, 1.0f).t().requires_grad_();
  at::Tensor objective = torch::full({4}, 1.0f).requires_grad_();
  at::Tensor half = torch::full({2}, 1.0f).to(at::kBFloat16).requires_grad_();
  at::Tensor outside = torch::full({1}, 1.0, torch::kDouble);
  ParameterArena arena{{{{"wide", wide}, {"objective", objective}, {"half", half}}}, ParameterLayout::flat};
  WeightAverage average{{.decay = 0.75}, {{"outside", outside}, {"half", half}, {"wide", wide}}, &arena};

  void set(double value) const {
    const torch::NoGradGuard no_grad;
    for (const auto& tensor : {wide, objective, half, outside}) tensor.fill_(value);
  }
  void check(double averaged, double raw) const {
    for (const auto& tensor : {wide, half, outside}) CATCH_CHECK(tensor.eq(averaged).all().item<bool>());
    CATCH_CHECK(objective.eq(raw).all().item<bool>());
  }
};

}  // namespace

CATCH_TEST_CASE("in a flat arena the average follows its formula, in fp32 for half parameters") {
  InArena in_arena;
  in_arena.average.start();
  in_arena.set(2);
  in_arena.average.update();
  in_arena.set(3);
  in_arena.average.update();
  const auto named = in_arena.average.named();
  CATCH_REQUIRE(named.size() == 3);
  const double expected =
      0.75 * (0.75 * 1 + 0.25 * 2) + 0.25 * 3;  // 1.6875, and bf16 has no step that small at 1
  const std::vector<at::ScalarType> types = {at::kDouble, at::kFloat, at::kFloat};
  for (std::size_t i = 0; i < 3; ++i) {
    CATCH_CAPTURE(named[i].first);
    CATCH_CHECK(named[i].second.scalar_type() == types[i]);
    CATCH_CHECK(named[i].second.eq(expected).all().item<bool>());
  }
  CATCH_CHECK(named[2].second.strides() == in_arena.wide.strides());
  CATCH_CHECK(
      in_arena.average.over({{"half", in_arena.half}, {"own", in_arena.outside}})[1].second.item<double>() ==
      3);
  in_arena.check(3, 3);
}

CATCH_TEST_CASE("warming up, the n-th update has a decay of at most (1 + n) / (10 + n)") {
  const auto a = torch::zeros({1}, torch::kDouble);
  WeightAverage average({.decay = 0.26, .warmup = true}, {{"a", a}});
  average.start();
  a.fill_(1);
  double distance = 1;
  for (const double decay : {2.0 / 11, 3.0 / 12, 0.26, 0.26}) {
    average.update();
    distance *= decay;
    CATCH_CHECK(value(average.named()) == Approx(1 - distance).epsilon(1e-14));
  }
  // The count is part of what is loaded.
  average.load({{"a", torch::zeros({1}, torch::kDouble)}}, 1);
  average.update();
  CATCH_CHECK(value(average.named()) == Approx(1 - 3.0 / 12).epsilon(1e-14));
  CATCH_CHECK(average.updates() == 2);
}

CATCH_TEST_CASE(
    "a swap reaches whoever holds a parameter, leaves unaveraged ones raw, and goes back on an exception") {
  InArena in_arena;
  in_arena.average.start();
  in_arena.set(3);
  in_arena.average.update();
  const at::Tensor view = in_arena.wide.detach()[2];
  const auto buffer = in_arena.arena.buffers()[0].parameters;
  try {
    const WeightAverage::Swap swap(in_arena.average);
    in_arena.check(1.5, 3);
    CATCH_CHECK(view.eq(1.5).all().item<bool>());
    CATCH_CHECK(in_arena.average.named()[2].second.eq(1.5).all().item<bool>());
    throw std::runtime_error("inside");
  } catch (const std::runtime_error&) {
  }
  in_arena.check(3, 3);
  CATCH_CHECK(view.eq(3).all().item<bool>());
  CATCH_CHECK(in_arena.average.named()[1].second.eq(1.5).all().item<bool>());
  CATCH_CHECK(in_arena.average.named()[2].second.eq(1.5).all().item<bool>());

  // Nothing moved for good: the parameters still lie in the buffer, and training goes on from there.
  buffer.fill_(5);
  CATCH_CHECK(in_arena.wide.eq(5).all().item<bool>());
  in_arena.average.update();
  CATCH_CHECK(in_arena.average.named()[2].second.eq(0.75 * 1.5 + 0.25 * 5).all().item<bool>());
}

CATCH_TEST_CASE("an average saved flat is loaded where parameters are separate, and the other way round") {
  InArena in_arena;
  in_arena.average.start();
  in_arena.set(2);
  in_arena.average.update();
  WeightAverage separate({.decay = 0.75},
                         {{"wide", torch::zeros({5, 3})}, {"half", torch::zeros({2}, at::kBFloat16)}});
  separate.load(in_arena.average.named(), 1);
  CATCH_CHECK(value(separate.named(), 0) == 1.25);
  CATCH_CHECK(value(separate.named(), 1) == 1.25);
  auto saved = separate.named();
  saved.emplace_back("outside", torch::full({1}, 7.0, torch::kDouble));
  InArena fresh;
  fresh.average.load(saved, 1);
  const auto named = fresh.average.named();
  CATCH_CHECK((value(named, 0) == 7 && value(named, 1) == 1.25 && value(named, 2) == 1.25));
  fresh.check(1, 1);
}
