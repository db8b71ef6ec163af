#include "lockstep/loop/hooks.hpp"

#include <algorithm>
#include <array>

namespace lockstep {
namespace {

auto counts(const detail::HookPoints& points) {
#define LOCKSTEP_COUNT(name, signature) points.name.size(),
  return std::array{LOCKSTEP_HOOK_POINTS(LOCKSTEP_COUNT)};
#undef LOCKSTEP_COUNT
}

}  // namespace

bool Hooks::empty() const {
  const auto all = counts(points_);
  return std::all_of(all.begin(), all.end(), [](std::size_t count) { return count == 0; });
}

std::string Hooks::layout() const {
  std::string text;
  for (const auto count : counts(points_)) text += (text.empty() ? "" : " ") + std::to_string(count);
  return text;
}

}  // namespace lockstep
