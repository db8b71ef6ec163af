// The log of a run: files in a folder, lines or a bar on the console.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

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
  /// Where there is no bar, a training line on the console is followed by none for so long.
  double seconds_between_lines = 10;
  /// Without, run_dir is not touched, and only the console and added sinks get events. LOCKSTEP_DEBUG switches it off.
  bool files = true;
  /// Write TensorBoard event files too.
  bool tensorboard = true;
  /// Ask git for the commit and the changes of the working directory, for run.json and diff.patch.
  bool record_git = true;
};

/// Records a run in `run_dir` (created if absent, locked while this object lives) and shows it on the
/// console.
///
/// What the files hold is in docs/logging.md. A disk that is full, or a sink that fails, costs events but
/// does not stop the training: a warning tells of the first one, and end() of how many were lost. Used from
/// one thread at a time. Errors: FileError `run-directory-in-use`, `cannot-write-file`,
/// `cannot-create-directory`; ConfigError `invalid-debug-variable`.
class RunLogger {
 public:
  explicit RunLogger(std::filesystem::path run_dir, RunLoggerOptions options = {});
  ~RunLogger();
  RunLogger(const RunLogger&) = delete;
  RunLogger& operator=(const RunLogger&) = delete;

  [[nodiscard]] const std::filesystem::path& run_dir() const;

  /// Events go to it too, after the built-in writers. It gets every event even if it threw at earlier ones:
  /// most failures pass, as those of a network do.
  void add_sink(std::shared_ptr<Sink> sink);

  /// Records an event.
  void log(LogEvent event);

  /// A train() call begins: writes config.json and run.json. If `start` is for the console only, nothing else gets
  /// events until end(). Errors: FileError `cannot-write-file`.
  void begin(const RunStart& start);

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

/// Where no RunLogger was given: a line on standard error, through spdlog.
void info_on_console(const std::string& text);
void warn_on_console(const std::string& text);

}  // namespace lockstep
