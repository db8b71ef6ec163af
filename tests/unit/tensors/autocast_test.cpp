#include "lockstep/tensors/autocast.hpp"

#include <ATen/autocast_mode.h>

#include <stdexcept>

#include "support/catch.hpp"

using namespace lockstep;

namespace {

/// What two ones through this weight give.
double product(const at::Tensor& weight) { return torch::ones({1, 2}).mm(weight).item<double>(); }

at::Tensor weight(double value) { return torch::full({2, 1}, value).requires_grad_(); }

void set(const at::Tensor& weight, double value) {
  const torch::NoGradGuard no_grad;
  weight.fill_(value);
}

}  // namespace

CATCH_TEST_CASE("matrix products are in the half type inside, and as before outside") {
  const auto type = GENERATE(torch::kBFloat16, torch::kHalf);
  const auto w = weight(1);
  {
    const AutocastScope scope(torch::kCPU, type);
    CATCH_CHECK(torch::ones({1, 2}).mm(w).scalar_type() == type);
  }
  CATCH_CHECK(torch::ones({1, 2}).mm(w).scalar_type() == torch::kFloat);
}

CATCH_TEST_CASE("scopes nest, and each puts back what it found") {
  const auto enabled = at::autocast::is_autocast_enabled(at::kCPU);
  const auto type = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const AutocastScope outer(torch::kCPU, torch::kHalf);
    try {
      const AutocastScope inner(torch::kCPU, torch::kBFloat16);
      CATCH_CHECK(at::autocast::get_autocast_dtype(at::kCPU) == torch::kBFloat16);
      throw std::runtime_error("left by an exception");
    } catch (const std::runtime_error&) {
    }
    CATCH_CHECK(at::autocast::is_autocast_enabled(at::kCPU));
    CATCH_CHECK(at::autocast::get_autocast_dtype(at::kCPU) == torch::kHalf);
  }
  CATCH_CHECK(at::autocast::is_autocast_enabled(at::kCPU) == enabled);
  CATCH_CHECK(at::autocast::get_autocast_dtype(at::kCPU) == type);
  CATCH_CHECK(at::autocast::increment_nesting() == 1);
  at::autocast::decrement_nesting();
}

CATCH_TEST_CASE("a weight that changed between two scopes is cast anew") {
  const auto w = weight(1);
  {
    const AutocastScope scope(torch::kCPU, torch::kHalf);
    CATCH_CHECK(product(w) == 2);
    set(w, 3);
    CATCH_CHECK(product(w) == 2);  // casts are kept, so the checks below mean something
  }
  {
    const AutocastScope scope(torch::kCPU, torch::kHalf);
    CATCH_CHECK(product(w) == 6);
  }
}

CATCH_TEST_CASE("no cast outlives a scope that an exception ended, even below another scope") {
  const auto w = weight(1);
  const AutocastScope outer(torch::kCPU, torch::kHalf);
  try {
    const AutocastScope scope(torch::kCPU, torch::kHalf);
    (void)product(w);
    throw std::runtime_error("a Step that fails");
  } catch (const std::runtime_error&) {
  }
  set(w, 3);
  CATCH_CHECK(product(w) == 6);
}

CATCH_TEST_CASE("a cast made before a scope opened is not used in it") {
  const auto w = weight(1);
  const AutocastScope outer(torch::kCPU, torch::kHalf);
  (void)product(w);
  set(w, 3);  // as when averaged weights take the place of the model's
  const AutocastScope scope(torch::kCPU, torch::kHalf);
  CATCH_CHECK(product(w) == 6);
}
