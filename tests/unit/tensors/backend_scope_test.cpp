#include "lockstep/tensors/backend_scope.hpp"

#include <ATen/Context.h>

#include <limits>
#include <tuple>

#include "support/captured_stderr.hpp"
#include "support/catch.hpp"

using namespace lockstep;
using torch::autograd::AnomalyMode;

namespace {

auto switches() {
  const auto& torch = at::globalContext();
  return std::tuple(torch.allowTF32CuBLAS(), torch.float32MatmulPrecision(), torch.allowTF32CuDNN(),
                    torch.deterministicAlgorithms(), torch.deterministicAlgorithmsWarnOnly(),
                    torch.benchmarkCuDNN(), AnomalyMode::is_enabled(), AnomalyMode::should_check_nan());
}

}  // namespace

CATCH_TEST_CASE("a scope without settings changes nothing") {
  const auto before = switches();
  const BackendScope scope({});
  CATCH_CHECK(switches() == before);
}

CATCH_TEST_CASE("every setting is turned on and off, and put back") {
  const auto& torch = at::globalContext();
  const auto before = switches();
  for (const bool on : {true, false}) {
    const BackendScope scope(
        {.tf32 = on, .deterministic_algorithms = on, .cudnn_benchmark = on, .anomaly_detection = on});
    CATCH_CHECK(torch.allowTF32CuBLAS() == on);
    CATCH_CHECK(torch.allowTF32CuDNN() == on);
    CATCH_CHECK(torch.deterministicAlgorithms() == on);
    CATCH_CHECK(torch.benchmarkCuDNN() == on);
    CATCH_CHECK(AnomalyMode::is_enabled() == on);
  }
  CATCH_CHECK(switches() == before);
}

CATCH_TEST_CASE("what is put back is what was there, not Torch's defaults") {
  auto& torch = at::globalContext();
  const auto defaults = switches();
  torch.setFloat32MatmulPrecision("medium");
  torch.setDeterministicAlgorithms(true, /*warn_only=*/true);
  const auto before = switches();
  { const BackendScope scope({.tf32 = false, .deterministic_algorithms = false}); }
  CATCH_CHECK(switches() == before);
  torch.setFloat32MatmulPrecision("highest");
  torch.setDeterministicAlgorithms(false, false);
  CATCH_CHECK(switches() == defaults);
}

CATCH_TEST_CASE("anomaly detection names the operation whose gradient is NaN") {
  const BackendScope scope({.anomaly_detection = true});
  const auto w = torch::zeros({}, torch::requires_grad());
  // Torch writes where the forward operation was called to standard error.
  (void)test::captured_stderr([&] {
    CATCH_CHECK_THROWS_WITH((torch::sqrt(w) * 0).backward(), Catch::Matchers::Contains("SqrtBackward0"));
  });
}
