// One line on a terminal that shows how far a train() call is.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/watch/run_logger.hpp"

namespace lockstep {

struct Progress {
  using Values = std::vector<std::pair<std::string, double>>;

  RunPlan plan = {};
  std::int64_t step = 0;  ///< successful updates
  double seconds = 0;     ///< since plan.first_step
  /// With labels, the most important first.
  Values values = {};
};

/// `  12.0 updates/s  1:02 left`: nothing before the first update, and no time left without a plan.
std::string pace_text(const Progress& progress);

/// The line: ` 13% [===>         ]  120/860  12.0 updates/s  1:02 left  loss 0.5312`, shorter than `width`
/// columns, so that the cursor stays on it. A wide terminal gets all values, a narrow one less and less.
std::string progress_line(const Progress& progress, int width);

/// Whether the terminal, if it is one, can show a bar: not where TERM is unset or "dumb", nor in CI.
bool can_show_progress_bar(int file);

/// Keeps the line up to date, redrawn at most ten times a second. Cleared at the end.
class ProgressBar {
 public:
  ProgressBar(int terminal, const RunPlan& plan);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void update(std::int64_t step);
  void set_values(Progress::Values values) { progress_.values = std::move(values); }

  /// Leaves the line empty, for text.
  void clear();
  void draw();

 private:
  using Clock = std::chrono::steady_clock;

  int terminal_;
  Progress progress_;
  Clock::time_point start_ = Clock::now();  // of the call, at plan.first_step
  Clock::time_point next_draw_ = start_;
};

}  // namespace lockstep
