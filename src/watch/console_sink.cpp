#include "watch/console_sink.hpp"

#include <fmt/format.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "lockstep/watch/performance_meter.hpp"
#include "watch/number_text.hpp"

namespace lockstep {
namespace {

/// "warning: " or "error: " before a text that is one, nothing before others.
class SeverityFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    if (message.level < spdlog::level::warn) return;
    for (const std::string_view part :
         {std::string_view(message.level == spdlog::level::warn ? "warning" : "error"),
          std::string_view(": ")}) {
      line.append(part.data(), part.data() + part.size());
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<SeverityFlag>(); }
};

std::string to_line(const LogEvent& event, std::int64_t planned_steps) {
  std::string line = fmt::format("step {}", event.step);
  if (planned_steps > 0) line += fmt::format("/{}", planned_steps);
  line += fmt::format("  epoch {}", event.epoch);
  // The values of the others, or the line's severity, say what they are.
  if (event.event != "train" && event.event != "epoch" && event.event != "evaluate" && event.event != "error")
    line += fmt::format("  {}", event.event);
  // Best values are those of the evaluation in the line before.
  if (event.event != "best") {
    for (const auto& [name, value] : event.values) {
      if (!is_measurement(name)) line += fmt::format("  {} {}", name, number_text(value));
    }
  }
  if (!event.text.empty()) line += fmt::format("  {}", event.text);
  return line;
}

}  // namespace

std::shared_ptr<spdlog::logger> make_console_logger() {
  const char* const no_color = std::getenv("NO_COLOR");
  const bool colors = no_color == nullptr || *no_color == '\0';
  auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>(colors ? spdlog::color_mode::automatic
                                                                           : spdlog::color_mode::never);
  sink->set_color(spdlog::level::info, sink->reset);
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<SeverityFlag>('*').set_pattern("%T  %^%*%v%$");
  sink->set_formatter(std::move(formatter));
  return std::make_shared<spdlog::logger>("lockstep", std::move(sink));
}

ConsoleSink::ConsoleSink(std::shared_ptr<spdlog::logger> logger, bool quiet, double seconds_between_lines)
    : logger_(logger ? std::move(logger) : make_console_logger()),
      quiet_(quiet),
      between_lines_(seconds_between_lines) {}

ConsoleSink::~ConsoleSink() = default;

void ConsoleSink::begin(const RunStart& start) {
  plan_ = start.plan;
  begin_ = Clock::now();
  last_line_.reset();
  best_.clear();
  bar_.reset();
  if (!quiet_ && can_show_progress_bar(STDERR_FILENO)) bar_.emplace(STDERR_FILENO, plan_);
}

void ConsoleSink::progress(std::int64_t step) {
  if (bar_) bar_->update(step);
}

void ConsoleSink::write(const LogEvent& event) {
  if (event.event == "values") return;  // there may be hundreds
  if (event.event == "best") best_ = event.values;
  if (event.event != "train") {
    const auto level = event.event == "error" ? spdlog::level::err : spdlog::level::info;
    return print(level, to_line(event, plan_.planned_steps));
  }
  if (bar_) return bar_->set_values(bar_values(event));
  const auto now = Clock::now();
  if (last_line_ && now - *last_line_ < between_lines_) return;
  last_line_ = now;
  const std::chrono::duration<double> elapsed = now - begin_;
  print(spdlog::level::info,
        to_line(event, plan_.planned_steps) +
            pace_text({.plan = plan_, .step = event.step, .seconds = elapsed.count()}));
}

/// The loss, the best values, then what else the Step counts.
Progress::Values ConsoleSink::bar_values(const LogEvent& event) const {
  constexpr std::string_view prefix = "train/";
  Progress::Values values;
  for (const auto& [name, value] : event.values) {
    if (name == "train/loss") values.emplace_back("loss", value);
  }
  values.insert(values.end(), best_.begin(), best_.end());
  for (const auto& [name, value] : event.values) {
    if (!name.starts_with(prefix) || name == "train/loss") continue;
    values.emplace_back(name.substr(prefix.size()), value);
  }
  return values;
}

void ConsoleSink::finish() { bar_.reset(); }

void ConsoleSink::print(spdlog::level::level_enum level, const std::string& text) {
  if (quiet_ && level < spdlog::level::warn) return;
  if (bar_) bar_->clear();
  logger_->log(level, spdlog::string_view_t(text));
  logger_->flush();
  if (bar_) bar_->draw();
}

}  // namespace lockstep
