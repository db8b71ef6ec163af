#include "lockstep/loop/hooks.hpp"

#include <algorithm>
#include <array>

#include "lockstep/watch/run_logger.hpp"

namespace lockstep {
namespace {

auto counts(const detail::HookPoints& points) {
#define LOCKSTEP_COUNT(name, signature) points.name.size(),
  return std::array{LOCKSTEP_HOOK_POINTS(LOCKSTEP_COUNT)};
#undef LOCKSTEP_COUNT
}

}  // namespace

void Run::log(std::vector<std::pair<std::string, double>> values) {
  if (!logger_ || !accelerator_.is_main_process()) return;
  logger_->log({.event = "values",
                .step = state_.step,
                .epoch = state_.epoch,
                .samples = state_.samples,
                .values = std::move(values)});
}

void Run::info(const std::string& text) {
  if (!accelerator_.is_main_process()) return;
  if (logger_) {
    logger_->info(text);
  } else {
    info_on_console(text);
  }
}

bool Hooks::empty() const {
  const auto all = counts(points_);
  return std::all_of(all.begin(), all.end(), [](std::size_t count) { return count == 0; });
}

std::string Hooks::layout() const {
  std::string text;
  for (const auto count : counts(points_)) {
    if (!text.empty()) text += ' ';
    text += std::to_string(count);
  }
  return text;
}

}  // namespace lockstep
