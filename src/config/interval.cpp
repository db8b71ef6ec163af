#include "lockstep/config/interval.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <utility>

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

constexpr std::string_view young_daly_prefix = "failure every ";
constexpr std::array units = {std::pair(Interval::Unit::step, std::string_view("step")),
                              std::pair(Interval::Unit::epoch, std::string_view("epoch")),
                              std::pair(Interval::Unit::second, std::string_view("second"))};

}  // namespace

bool Interval::due(std::int64_t step, bool updated, std::int64_t epoch, bool epoch_ended) const {
  assert(every > 0);
  if (timed()) return false;
  const std::int64_t count = unit == Unit::step ? step : epoch;
  const bool moved = unit == Unit::step ? updated : epoch_ended;
  return moved && count > 0 && count % every == 0;
}

Interval Interval::parse(std::string_view text) {
  const bool by_failures = text.starts_with(young_daly_prefix);
  const std::string_view number = by_failures ? text.substr(young_daly_prefix.size()) : text;
  Interval interval{.unit = Unit::step};
  const char* const end = number.data() + number.size();
  const auto [rest, error] = std::from_chars(number.data(), end, interval.every);
  if (error != std::errc{} || interval.every < 1) throw message::invalid_interval(std::string(text));

  std::string_view unit(rest, end);
  if (unit.empty() && !by_failures) return interval;
  if (unit.ends_with('s')) unit.remove_suffix(1);
  for (const auto& [value, name] : units) {
    if (!unit.starts_with(' ') || unit.substr(1) != name) continue;
    interval.unit = value;
    if (!by_failures) return interval;
    if (value == Unit::second) return young_daly(std::chrono::seconds(interval.every));
  }
  throw message::invalid_interval(std::string(text));
}

std::string to_string(const Interval& interval) {
  if (interval.unit == Interval::Unit::young_daly) {
    return fmt::format("{}{}", young_daly_prefix, to_string({interval.every, Interval::Unit::second}));
  }
  const auto named = std::find_if(units.begin(), units.end(), [&](const auto& one) { return one.first == interval.unit; });
  assert(named != units.end());
  return fmt::format("{} {}{}", interval.every, named->second, interval.every == 1 ? "" : "s");
}

}  // namespace lockstep
