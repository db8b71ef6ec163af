#include "lockstep/config/batch_limit.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/messages.hpp"

namespace lockstep {

std::int64_t BatchLimit::of(std::optional<std::int64_t> available) const {
  if (const auto* count = std::get_if<std::int64_t>(&limit_)) {
    return available ? std::min(*count, *available) : *count;
  }
  if (!available) throw message::unknown_length();
  const auto batches = static_cast<std::int64_t>(std::get<double>(limit_) * static_cast<double>(*available));
  return std::min(std::max<std::int64_t>(batches, 1), *available);
}

std::optional<std::int64_t> limited(const std::optional<BatchLimit>& limit,
                                    std::optional<std::int64_t> available) {
  return limit ? limit->of(available) : available;
}

std::vector<std::string> problems(const std::string& name, const BatchLimit& limit) {
  if (const auto* count = std::get_if<std::int64_t>(&limit.value())) {
    if (*count >= 1) return {};
    return {fmt::format("{} is {}: give at least 1 batch, or leave it out to use all.", name, *count)};
  }
  const double share = std::get<double>(limit.value());
  if (share > 0 && share <= 1) return {};
  return {fmt::format("{} is {}: give a share above 0 and at most 1.0, or a whole number of batches.", name, share)};
}

}  // namespace lockstep
