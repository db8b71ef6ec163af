#include "watch/number_text.hpp"

#include <limits>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("a number is shown with four digits that count") {
  const auto [value, text] = GENERATE(table<double, const char*>({
      {0.0, "0"},
      {0.5312, "0.5312"},
      {0.812, "0.8120"},
      {-0.25, "-0.2500"},
      {12.345, "12.35"},
      {0.001, "0.001000"},
      {0.0009999, "9.999e-04"},
      {1.92e-5, "1.920e-05"},
      {999.94, "999.9"},
      {999.96, "1000"},
      {123456.7, "123457"},
      {999999.7, "1.000e+06"},
      {2.5e9, "2.500e+09"},
      {std::numeric_limits<double>::quiet_NaN(), "nan"},
      {-std::numeric_limits<double>::infinity(), "-inf"},
  }));
  CATCH_CHECK(number_text(value) == text);
}

CATCH_TEST_CASE("a duration is shown in minutes and seconds, with hours where there are any") {
  const auto [seconds, text] = GENERATE(table<double, const char*>({
      {0.0, "0:00"},
      {4.6, "0:05"},
      {65.0, "1:05"},
      {3599.0, "59:59"},
      {3599.7, "1:00:00"},
      {93784.0, "26:03:04"},
      {std::numeric_limits<double>::infinity(), "277777:46:40"},
  }));
  CATCH_CHECK(duration_text(seconds) == text);
}
