#include "lockstep/watch/performance_meter.hpp"

#include <map>

#include "support/catch.hpp"

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

using Values = std::map<std::string, double>;

Values as_map(const std::vector<std::pair<std::string, double>>& values) {
  return {values.begin(), values.end()};
}

}  // namespace

CATCH_TEST_CASE("time is split by what it went into, and rates count what got done in it") {
  PerformanceMeter meter;
  const PerformanceMeter::Clock::time_point begin(100s);
  meter.start(40, 1000, begin);
  meter.lap(Activity::data, begin + 1s);
  meter.lap(Activity::step, begin + 3s);
  meter.lap(Activity::data, begin + 3500ms);
  meter.lap(Activity::step, begin + 5s);
  meter.lap(Activity::update, begin + 6s);
  Values values = as_map(meter.take(50, 1640, begin + 8s));
  CATCH_CHECK(values.at("samples_per_second") == 80);  // 640 in 8 seconds
  CATCH_CHECK(values.at("steps_per_second") == 1.25);
  CATCH_CHECK(values.at("time/data") == 0.1875);  // 1.5 of 8 seconds
  CATCH_CHECK(values.at("time/step") == 0.4375);
  CATCH_CHECK(values.at("time/update") == 0.125);
  CATCH_CHECK(values.at("time/evaluate") == 0);
  CATCH_CHECK(values.at("time/checkpoint") == 0);
  CATCH_CHECK(values.at("time/other") == 0.25);

  // From here on nothing of before counts.
  meter.lap(Activity::evaluate, begin + 9s);
  values = as_map(meter.take(51, 1644, begin + 10s));
  CATCH_CHECK(values.at("samples_per_second") == 2);
  CATCH_CHECK(values.at("steps_per_second") == 0.5);
  CATCH_CHECK(values.at("time/data") == 0);
  CATCH_CHECK(values.at("time/evaluate") == 0.5);
  CATCH_CHECK(values.at("time/other") == 0.5);
}

CATCH_TEST_CASE("every value of the meter is known as a measurement, and no other") {
  PerformanceMeter meter;
  const auto values = meter.take(1, 1);
  CATCH_CHECK(values.size() == 9);
  for (const auto& value : values) {
    CATCH_INFO(value.first);
    CATCH_CHECK(is_measurement(value.first));
  }
  for (const char* name : {"train/loss", "validation/time/data", "lr", "grad_norm", "best/validation/loss"}) {
    CATCH_INFO(name);
    CATCH_CHECK_FALSE(is_measurement(name));
  }
}

CATCH_TEST_CASE("resident memory grows by what is written to") {
  const std::int64_t before = resident_bytes();
  constexpr std::int64_t size = 32 << 20;
  const std::vector<char> memory(size, 1);
  const std::int64_t growth = resident_bytes() - before;
  CATCH_CHECK(growth > size / 2);
  CATCH_CHECK(growth < size * 2);
}
