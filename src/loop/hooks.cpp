#include "lockstep/loop/hooks.hpp"

namespace lockstep {
namespace {

std::vector<std::size_t> counts(const detail::HookPoints& points) {
#define LOCKSTEP_COUNT(name, signature) points.name.size(),
  return {LOCKSTEP_HOOK_POINTS(LOCKSTEP_COUNT)};
#undef LOCKSTEP_COUNT
}

}  // namespace

bool Hooks::empty() const {
  for (const auto count : counts(points_)) {
    if (count > 0) return false;
  }
  return true;
}

std::string Hooks::layout() const {
  std::string text;
  for (const auto count : counts(points_)) text += (text.empty() ? "" : " ") + std::to_string(count);
  return text;
}

}  // namespace lockstep
