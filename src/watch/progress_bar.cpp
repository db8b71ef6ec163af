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
  return "[" + inside + "]";
}

}  // namespace

std::string progress_line(const Progress& progress, int width) {
  constexpr std::size_t narrowest_bar = 8;
  const auto room = static_cast<std::size_t>(std::max(width - 1, 0));
  const auto& [first_step, planned_steps] = progress.plan;
  const double rate =
      progress.seconds > 0 ? static_cast<double>(progress.step - first_step) / progress.seconds : 0;

  const std::string rate_text = fmt::format("  {:.{}f}", rate, rate < 1 ? 2 : rate < 100 ? 1 : 0);
  std::string end;
  if (planned_steps > 0 && rate > 0) {
    const double left = static_cast<double>(planned_steps - progress.step) / rate;
    end += fmt::format("  {} left", duration_text(std::max(left, 0.0)));
  }
  if (progress.loss) end += fmt::format("  loss {}", number_text(*progress.loss));

  if (planned_steps <= 0)
    return fmt::format("step {}{} updates/s{}", progress.step, rate_text, end).substr(0, room);

  const double fraction =
      std::clamp(static_cast<double>(progress.step) / static_cast<double>(planned_steps), 0.0, 1.0);
  // Rounded down: 100% is said at the end only.
  const std::string start = fmt::format("{:3}% ", static_cast<int>(fraction * 100));
  // As wide at the first step as at the last, so that the bar keeps its length.
  const std::string planned = std::to_string(planned_steps);
  const std::string steps = fmt::format("  {:>{}}/{}", progress.step, planned.size(), planned);
  for (const char* unit : {" updates/s", "/s"}) {
    const std::string text = steps + rate_text + unit + end;
    const std::size_t around_bar = start.size() + text.size() + 2;
    if (around_bar + narrowest_bar <= room) return start + bar(fraction, room - around_bar) + text;
  }
  return (start + steps.substr(1) + rate_text + "/s" + end).substr(0, room);
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
  print(terminal_, "\r" + progress_line(progress_, columns(terminal_)) + "\x1b[K");
}

}  // namespace lockstep
