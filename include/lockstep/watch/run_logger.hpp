// The log of a run: metrics.jsonl, config.json and run.json in a folder, lines or a bar on the console.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/watch/sink.hpp"

namespace spdlog {
class logger;
}

namespace lockstep {

struct RunLoggerOptions {
  /// Only the main process writes; on the others the logger does nothing.
  bool is_main_process = true;
  /// Where console lines go; null: a private logger named "lockstep" on standard error.
  std::shared_ptr<spdlog::logger> console = nullptr;
  /// Neither progress bar nor console lines below warnings.
  bool quiet = false;
};

/// How far a train() call may go, for the progress bar.
struct RunPlan {
  std::int64_t first_step = 0;
  std::int64_t planned_steps = 0;  ///< 0: unknown
};

/// Records a run in `run_dir` (created if absent, locked while this object lives) and shows it on the
/// console.
///
/// metrics.jsonl is append-only, one JSON object a line; a line torn by a crash is closed off before the next
/// one. A disk that is full, or a sink that fails, costs events and brings a warning, but does not stop the
/// training. Used from one thread at a time. Errors: FileError `run-directory-in-use`, `cannot-write-file`,
/// `cannot-create-directory`.
class RunLogger {
 public:
  explicit RunLogger(std::filesystem::path run_dir, RunLoggerOptions options = {});
  ~RunLogger();
  RunLogger(const RunLogger&) = delete;
  RunLogger& operator=(const RunLogger&) = delete;

  [[nodiscard]] const std::filesystem::path& run_dir() const;

  /// Events go to it too, after the built-in writers. A sink that throws is dropped with a warning.
  void add_sink(std::shared_ptr<Sink> sink);

  /// Records an event.
  void log(const LogEvent& event);

  /// A train() call begins: writes config.json (`config` is JSON text) and run.json (versions, host, time,
  /// command). `versions` are added to run.json, for example {"torch", "2.13.0"}. Errors: FileError
  /// `cannot-write-file`.
  void begin(const RunPlan& plan, const std::string& config,
             const std::vector<std::pair<std::string, std::string>>& versions);

  /// An update was made. Cheap: redraws at most ten times a second, and only on a terminal.
  void progress(std::int64_t step);

  /// A line on the console, around the bar.
  void info(const std::string& text);
  void warn(const std::string& text);

  /// The train() call is over: clears the bar, flushes the files.
  void end();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A warning where no RunLogger was given: a line on standard error, through spdlog.
void warn_on_console(const std::string& text);

}  // namespace lockstep
