#include "lockstep/watch/performance_meter.hpp"

#include <unistd.h>

#include <fstream>

namespace lockstep {
namespace {

double seconds(PerformanceMeter::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void PerformanceMeter::start(std::int64_t step, std::int64_t samples, Clock::time_point now) {
  step_ = step;
  samples_ = samples;
  start_ = lap_start_ = now;
  spent_ = {};
}

std::vector<std::pair<std::string, double>> PerformanceMeter::take(std::int64_t step, std::int64_t samples,
                                                                   Clock::time_point now) {
  static constexpr std::array<const char*, activities> names = {
      "time/data", "time/step", "time/update", "time/evaluate", "time/checkpoint", "time/other"};
  lap(Activity::other, now);
  const double elapsed = seconds(now - start_);
  std::vector<std::pair<std::string, double>> values = {
      {"samples_per_second", static_cast<double>(samples - samples_) / elapsed},
      {"steps_per_second", static_cast<double>(step - step_) / elapsed}};
  for (std::size_t i = 0; i < activities; ++i) values.emplace_back(names[i], seconds(spent_[i]) / elapsed);
  values.emplace_back("memory/resident_bytes", static_cast<double>(resident_bytes()));
  start(step, samples, now);
  return values;
}

bool is_measurement(std::string_view value_name) {
  return value_name == "samples_per_second" || value_name == "steps_per_second" ||
         value_name.starts_with("time/") || value_name.starts_with("memory/");
}

std::int64_t resident_bytes() {
  std::int64_t all_pages = 0;
  std::int64_t resident_pages = 0;
  std::ifstream("/proc/self/statm") >> all_pages >> resident_pages;
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

}  // namespace lockstep
