#include "lockstep/optim/gradient_norm.hpp"

#include <cmath>
#include <limits>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("the norm runs over all elements of all gradients") {
  const std::vector<at::Tensor> gradients{torch::tensor({1.0f, 2.0f}), torch::full({1, 1}, 2.0f),
                                          torch::tensor(4.0f), torch::zeros({0})};
  CATCH_CHECK(gradient_norm(gradients) == Approx(5.0).epsilon(1e-7));
  CATCH_CHECK(exact_gradient_norm(gradients) == Approx(5.0).epsilon(1e-12));
  CATCH_CHECK(gradient_norm({}) == 0);
  CATCH_CHECK(exact_gradient_norm({}) == 0);
}

CATCH_TEST_CASE("the norm of ten million elements is that in double to 1e-8") {
  torch::manual_seed(3);
  const auto gradient = torch::randn({10'000'019}) * 0.01;  // not a whole number of rows
  const auto* values = gradient.data_ptr<float>();
  long double squares = 0;
  for (std::int64_t i = 0; i < gradient.numel(); ++i) {
    squares += static_cast<long double>(values[i]) * static_cast<long double>(values[i]);
  }
  const auto expected = static_cast<double>(std::sqrt(squares));
  CATCH_CHECK(std::abs(gradient_norm({gradient}) / expected - 1) < 1e-8);
  CATCH_CHECK(std::abs(exact_gradient_norm({gradient}) / expected - 1) < 1e-12);
}

CATCH_TEST_CASE("the norm that stays on the device is the one that is read, to the bit") {
  torch::manual_seed(5);
  const std::vector<at::Tensor> gradients{torch::randn({5000}), torch::randn({7}, torch::kDouble),
                                          torch::randn({30}).to(torch::kHalf)};
  const at::Tensor norm = gradient_norm_on_device(gradients);
  CATCH_CHECK(norm.dim() == 0);
  CATCH_CHECK(norm.scalar_type() == torch::kDouble);
  CATCH_CHECK(norm.item<double>() == gradient_norm(gradients));
}

CATCH_TEST_CASE("the layout of a gradient does not matter") {
  torch::manual_seed(4);
  const auto gradient = torch::randn({300, 200});
  const double expected = exact_gradient_norm({gradient});
  CATCH_CHECK(gradient_norm({gradient.t()}) == Approx(expected).epsilon(1e-6));
  CATCH_CHECK(gradient_norm({gradient.view({100, 600}).narrow(0, 0, 50),
                             gradient.view({100, 600}).narrow(0, 50, 50)}) == Approx(expected).epsilon(1e-7));
}

CATCH_TEST_CASE("finite gradients whose squares overflow have a finite exact norm") {
  const std::vector<at::Tensor> gradients{torch::full({10'000}, 1e25f), torch::full({3}, -1e25f)};
  CATCH_CHECK_FALSE(std::isfinite(gradient_norm(gradients)));
  CATCH_CHECK(exact_gradient_norm(gradients) ==
              Approx(static_cast<double>(1e25f) * std::sqrt(10'003.0)).epsilon(1e-12));
}

CATCH_TEST_CASE("doubles whose squares overflow have a finite exact norm too") {
  const std::vector<at::Tensor> gradients{torch::full({3}, 3e200, torch::kDouble),
                                          torch::full({1}, -1e200, torch::kDouble)};
  CATCH_CHECK_FALSE(std::isfinite(gradient_norm(gradients)));
  CATCH_CHECK(exact_gradient_norm(gradients) / 1e200 == Approx(std::sqrt(28.0)).epsilon(1e-12));
}

CATCH_TEST_CASE("one element that is not finite makes the norm not finite, wherever it is") {
  const float value =
      GENERATE(std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
               std::numeric_limits<float>::quiet_NaN());
  const std::int64_t place = GENERATE(0, 5000, 9999);
  auto gradient = torch::zeros({10'000});
  gradient[place] = value;
  CATCH_CHECK_FALSE(std::isfinite(gradient_norm({torch::ones({4}), gradient})));
  CATCH_CHECK_FALSE(std::isfinite(exact_gradient_norm({torch::ones({4}), gradient})));
}

CATCH_TEST_CASE("the parameters with a gradient that is not finite are named in order") {
  NamedTensors parameters;
  for (const auto* name : {"a", "b", "c", "d"})
    parameters.emplace_back(name, torch::zeros({2}).requires_grad_());
  parameters[0].second.mutable_grad() = torch::ones({2});
  parameters[1].second.mutable_grad() = torch::tensor({1.0f, std::numeric_limits<float>::infinity()});
  parameters[3].second.mutable_grad() = torch::tensor({std::numeric_limits<float>::quiet_NaN(), 0.0f});
  CATCH_CHECK(not_finite(parameters) == std::vector<std::string>{"b", "d"});
}
