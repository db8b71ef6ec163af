// What a person sees of a run: lines, and on a terminal a progress bar below them.
#pragma once

#include <spdlog/common.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/watch/run_logger.hpp"
#include "lockstep/watch/sink.hpp"
#include "watch/progress_bar.hpp"

namespace lockstep {

/// A logger named "lockstep" on standard error, known to nobody else: the application's default logger and
/// registry stay as they are. Colours on a terminal only, and not where NO_COLOR is set.
std::shared_ptr<spdlog::logger> make_console_logger();

/// Every event as a line, `step 120/860  epoch 1  train/loss 0.5312  12.0 updates/s  1:02 left`; measurements
/// of the machine are left to the files. Where there is a bar, it takes the place of the training lines, and
/// shows the best values too; where there is none, they come no faster than a person reads them.
class ConsoleSink final : public Sink {
 public:
  /// `quiet`: warnings and errors only.
  ConsoleSink(std::shared_ptr<spdlog::logger> logger, bool quiet, double seconds_between_lines);
  ~ConsoleSink() override;

  void begin(const RunStart& start) override;
  void progress(std::int64_t step);
  void write(const LogEvent& event) override;
  void finish() override;

  /// Prints text so that the bar is not torn.
  void print(spdlog::level::level_enum level, const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] Progress::Values bar_values(const LogEvent& event) const;

  std::shared_ptr<spdlog::logger> logger_;
  bool quiet_;
  std::chrono::duration<double> between_lines_;
  Clock::time_point begin_ = Clock::now();
  std::optional<Clock::time_point> last_line_;  // of training
  RunPlan plan_ = {};
  Progress::Values best_;
  std::optional<ProgressBar> bar_;
};

}  // namespace lockstep
