#include "watch/number_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "config/json.hpp"

namespace lockstep {

std::string number_text(double value) {
  if (!std::isfinite(value)) return non_finite_name(value);
  const double size = std::abs(value);
  if (size == 0) return "0";
  // The bounds are the numbers that round up to the next power of ten.
  if (size < 0.99995e-3 || size >= 999999.5) return fmt::format("{:.3e}", value);
  if (size >= 999.95) return fmt::format("{:.0f}", value);
  return fmt::format("{:#.4g}", value);
}

std::string duration_text(double seconds) {
  constexpr double longest = 1e9;
  const auto whole = static_cast<std::int64_t>(std::round(std::min(seconds, longest)));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace lockstep
