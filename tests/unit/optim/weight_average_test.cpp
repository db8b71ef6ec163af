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
  return tensors[index].second.view(-1)[0].item<double>();
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
  CATCH_CHECK(test::thrown_id<ConfigError>([&] { WeightAverage({.decay = decay}, {}); }) == "invalid-settings");
  CATCH_CHECK_NOTHROW(WeightAverage({.decay = 0}, {}));
}
