#include "lockstep/config/precision.hpp"

#include <limits>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("precisions have the names that configurations use") {
  CATCH_CHECK(to_string(Precision::fp32) == "fp32");
  CATCH_CHECK(to_string(Precision::fp64) == "fp64");
  CATCH_CHECK(to_string(Precision::bf16_mixed) == "bf16-mixed");
  CATCH_CHECK(to_string(Precision::fp16_mixed) == "fp16-mixed");
}

CATCH_TEST_CASE("the defaults of the loss scaler have no problem, and each wrong value has one") {
  CATCH_CHECK(problems(LossScalerOptions{}).empty());
  const double inf = std::numeric_limits<double>::infinity();
  const auto found = problems(LossScalerOptions{
      .initial_scale = inf, .growth_factor = 1, .backoff_factor = 1, .growth_interval = 0});
  CATCH_REQUIRE(found.size() == 4);
  CATCH_CHECK(found[0].starts_with("loss_scaler.initial_scale is inf:"));
  CATCH_CHECK(problems(LossScalerOptions{.initial_scale = 1e39}).size() == 1);  // no float
  CATCH_CHECK(problems(LossScalerOptions{.initial_scale = smallest_loss_scale}).empty());
  CATCH_CHECK(problems(LossScalerOptions{.initial_scale = smallest_loss_scale / 2}).size() == 1);
  CATCH_CHECK(found[1].starts_with("loss_scaler.growth_factor is 1:"));
  CATCH_CHECK(found[2].starts_with("loss_scaler.backoff_factor is 1:"));
  CATCH_CHECK(found[3].starts_with("loss_scaler.growth_interval is 0:"));
}
