#include "lockstep/config/interval.hpp"

#include <fmt/format.h>

#include <cassert>
#include <charconv>

#include "lockstep/base/messages.hpp"

namespace lockstep {

bool Interval::due(std::int64_t step, bool updated, std::int64_t epoch, bool epoch_ended) const {
  assert(every > 0);
  const std::int64_t count = unit == Unit::step ? step : epoch;
  const bool moved = unit == Unit::step ? updated : epoch_ended;
  return moved && count > 0 && count % every == 0;
}

Interval Interval::parse(std::string_view text) {
  Interval interval{.unit = Unit::step};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, interval.every);
  if (error != std::errc{} || interval.every < 1) throw message::invalid_interval(std::string(text));

  const std::string_view unit(rest, end);
  if (unit == " epoch" || unit == " epochs") {
    interval.unit = Unit::epoch;
  } else if (!unit.empty() && unit != " step" && unit != " steps") {
    throw message::invalid_interval(std::string(text));
  }
  return interval;
}

std::string to_string(const Interval& interval) {
  return fmt::format("{} {}{}", interval.every, interval.unit == Interval::Unit::step ? "step" : "epoch",
                     interval.every == 1 ? "" : "s");
}

}  // namespace lockstep
