#include "lockstep/config/batch_limit.hpp"

#include <limits>

#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;

CATCH_TEST_CASE("a whole number limits by count") {
  CATCH_CHECK(BatchLimit(3).of(10) == 3);
  CATCH_CHECK(BatchLimit(30).of(10) == 10);
  CATCH_CHECK(BatchLimit(3).of(std::nullopt) == 3);
  CATCH_CHECK(BatchLimit(1).of(10) == 1);
}

CATCH_TEST_CASE("a floating-point number limits by share, rounded down to at least one batch") {
  CATCH_CHECK(BatchLimit(0.25).of(10) == 2);
  CATCH_CHECK(BatchLimit(0.01).of(10) == 1);
  CATCH_CHECK(BatchLimit(1.0).of(10) == 10);
  CATCH_CHECK(BatchLimit(0.5f).of(3) == 1);
  CATCH_CHECK(BatchLimit(0.5).of(0) == 0);
}

CATCH_TEST_CASE("a share of an unknown number of batches is refused") {
  CATCH_CHECK(test::thrown_id<ConfigError>([] { (void)BatchLimit(0.5).of(std::nullopt); }) == "unknown-length");
}

CATCH_TEST_CASE("without a limit all are used") {
  CATCH_CHECK(limited(std::nullopt, 7) == 7);
  CATCH_CHECK(limited(BatchLimit(2), 7) == 2);
  CATCH_CHECK(limited(std::nullopt, std::nullopt) == std::nullopt);
}

CATCH_TEST_CASE("a limit that uses nothing, or more than there is, is a mistake") {
  CATCH_CHECK(problems("limit", BatchLimit(1)).empty());
  CATCH_CHECK(problems("limit", BatchLimit(1.0)).empty());
  CATCH_CHECK(problems("limit", BatchLimit(0)).size() == 1);
  CATCH_CHECK(problems("limit", BatchLimit(0.0)).size() == 1);
  CATCH_CHECK(problems("limit", BatchLimit(1.5)).size() == 1);
  CATCH_CHECK(problems("limit", BatchLimit(std::numeric_limits<double>::quiet_NaN())).at(0).starts_with(
      "limit is nan: give a share"));
}
