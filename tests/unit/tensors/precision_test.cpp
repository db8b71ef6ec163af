#include "lockstep/tensors/precision.hpp"

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("a precision names the floating-point type of parameters, which is full in the mixed ones") {
  CATCH_CHECK(floating_type(Precision::fp32) == torch::kFloat);
  CATCH_CHECK(floating_type(Precision::fp64) == torch::kDouble);
  CATCH_CHECK(floating_type(Precision::bf16_mixed) == torch::kFloat);
  CATCH_CHECK(floating_type(Precision::fp16_mixed) == torch::kFloat);
}

CATCH_TEST_CASE("only the mixed precisions have a type for autocast") {
  CATCH_CHECK_FALSE(autocast_type(Precision::fp32));
  CATCH_CHECK_FALSE(autocast_type(Precision::fp64));
  CATCH_CHECK(autocast_type(Precision::bf16_mixed) == torch::kBFloat16);
  CATCH_CHECK(autocast_type(Precision::fp16_mixed) == torch::kHalf);
}
