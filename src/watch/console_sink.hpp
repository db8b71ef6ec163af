// What a person sees of a run: lines, and on a terminal a progress bar below them.
#pragma once

#include <spdlog/common.h>

#include <memory>
#include <optional>
#include <string>

#include "lockstep/watch/run_logger.hpp"
#include "lockstep/watch/sink.hpp"
#include "watch/progress_bar.hpp"

namespace lockstep {

/// A logger named "lockstep" on standard error, known to nobody else: the application's default logger and
/// registry stay as they are. Colours on a terminal only, and not where NO_COLOR is set.
std::shared_ptr<spdlog::logger> make_console_logger();

/// Every event as a line, `step 120/860  epoch 1  train/loss 0.5312`; where there is a bar, it takes the
/// place of the training lines.
class ConsoleSink final : public Sink {
 public:
  /// `quiet`: warnings and errors only.
  ConsoleSink(std::shared_ptr<spdlog::logger> logger, bool quiet);
  ~ConsoleSink() override;

  void begin(const RunStart& start) override;
  void progress(std::int64_t step);
  void write(const LogEvent& event) override;
  void finish() override;

  /// Prints text so that the bar is not torn.
  void print(spdlog::level::level_enum level, const std::string& text);

 private:
  std::shared_ptr<spdlog::logger> logger_;
  bool quiet_;
  std::int64_t planned_steps_ = 0;
  std::optional<ProgressBar> bar_;
};

}  // namespace lockstep
