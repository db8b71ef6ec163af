#include "lockstep/tensors/precision.hpp"

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("a precision names a floating-point type") {
  CATCH_CHECK(floating_type(Precision::fp32) == torch::kFloat);
  CATCH_CHECK(floating_type(Precision::fp64) == torch::kDouble);
  CATCH_CHECK(to_string(Precision::fp32) == "fp32");
  CATCH_CHECK(to_string(Precision::fp64) == "fp64");
}
