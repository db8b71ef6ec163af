#include "watch/progress_bar.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "watch/number_text.hpp"

namespace lockstep {
namespace {

constexpr auto time_between_draws = std::chrono::milliseconds(100);

bool is_set(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

int columns(int terminal) {
  winsize size = {};
  return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void print(int terminal, std::string_view text) {
  // A terminal that is gone is no reason to stop.
  (void)!::write(terminal, text.data(), text.size());
}

std::string bar(double fraction, std::size_t width) {
  const auto filled = static_cast<std::size_t>(fraction * static_cast<double>(width));
  std::string inside(width, ' ');
  std::fill_n(inside.begin(), filled, '=');
  if (filled < width) inside[filled] = '>';
  return fmt::format("[{}]", inside);
}

double rate(const Progress& progress) {
  const auto steps = static_cast<double>(progress.step - progress.plan.first_step);
  return progress.seconds > 0 ? steps / progress.seconds : 0;
}

std::string pace_text(const Progress& progress, std::string_view unit) {
  const double per_second = rate(progress);
  if (per_second <= 0) return {};
  const int digits = per_second < 1 ? 2 : per_second < 100 ? 1 : 0;
  std::string text = fmt::format("  {:.{}f}{}", per_second, digits, unit);
  if (progress.plan.planned_steps > 0) {
    const double left = static_cast<double>(progress.plan.planned_steps - progress.step) / per_second;
    text += fmt::format("  {} left", duration_text(std::max(left, 0.0)));
  }
  return text;
}

constexpr std::string_view long_unit = " updates/s";

}  // namespace

std::string pace_text(const Progress& progress) { return pace_text(progress, long_unit); }

std::string progress_line(const Progress& progress, int width) {
  constexpr std::size_t narrowest_bar = 8;
  constexpr std::size_t widest_bar = 40;
  const auto room = static_cast<std::size_t>(std::max(width - 1, 0));
  const std::int64_t planned_steps = progress.plan.planned_steps;
  const auto& values = progress.values;
  const auto value_text = [&](std::size_t i) {
    return i < values.size() ? fmt::format("  {} {}", values[i].first, number_text(values[i].second)) : "";
  };

  std::string start;
  std::string text = fmt::format("step {}", progress.step);
  std::size_t around_bar = 0;
  double fraction = 0;
  if (planned_steps > 0) {
    fraction = std::clamp(static_cast<double>(progress.step) / static_cast<double>(planned_steps), 0.0, 1.0);
    // Rounded down: 100% is said at the end only.
    start = fmt::format("{:3}% ", static_cast<int>(fraction * 100));
    // As wide at the first step as at the last, so that the bar keeps its length.
    const std::string planned = std::to_string(planned_steps);
    text = fmt::format("  {:>{}}/{}", progress.step, planned.size(), planned);
    around_bar = start.size() + 2 + narrowest_bar;
  }

  // A narrow terminal lacks further values first, then the long unit, then the bar, then the line's end.
  const std::string first_value = value_text(0);
  const std::string long_pace = pace_text(progress, long_unit);
  const bool has_room = around_bar + text.size() + long_pace.size() + first_value.size() <= room;
  text += has_room ? long_pace : pace_text(progress, "/s");
  text += first_value;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const std::string value = value_text(i);
    if (around_bar + text.size() + value.size() <= room) text += value;
  }

  if (planned_steps <= 0) return text.substr(0, room);
  if (around_bar + text.size() > room) return fmt::format("{}{}", start, text.substr(1)).substr(0, room);
  const std::size_t bar_width = std::min(narrowest_bar + room - around_bar - text.size(), widest_bar);
  return fmt::format("{}{}{}", start, bar(fraction, bar_width), text);
}

bool can_show_progress_bar(int file) {
  return ::isatty(file) == 1 && is_set("TERM") && std::string_view(std::getenv("TERM")) != "dumb" &&
         !is_set("CI");
}

ProgressBar::ProgressBar(int terminal, const RunPlan& plan)
    : terminal_(terminal), progress_{.plan = plan, .step = plan.first_step} {}

ProgressBar::~ProgressBar() { clear(); }

void ProgressBar::update(std::int64_t step) {
  progress_.step = step;
  if (Clock::now() >= next_draw_) draw();
}

void ProgressBar::clear() { print(terminal_, "\r\x1b[K"); }

void ProgressBar::draw() {
  const auto now = Clock::now();
  next_draw_ = now + time_between_draws;
  progress_.seconds = std::chrono::duration<double>(now - start_).count();
  print(terminal_, fmt::format("\r{}\x1b[K", progress_line(progress_, columns(terminal_))));
}

}  // namespace lockstep
