// What a run reports, and the interface of those who write it down.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/watch/histogram.hpp"

namespace lockstep {

/// One thing that happened in a run.
struct LogEvent {
  /// start, resume, train, epoch, evaluate, best, values, checkpoint, skip, skip_save, histograms, test, stop, error, end
  std::string event;
  std::int64_t step = 0;     ///< successful updates
  std::int64_t epoch = 0;    ///< completed epochs
  std::int64_t samples = 0;  ///< samples over all ranks
  /// Named numbers, for example {"train/loss", 0.31}. Not-finite ones are kept as they are.
  std::vector<std::pair<std::string, double>> values = {};
  /// Free text: a path, a reason, a message. Empty if there is none.
  std::string text = {};
  std::vector<Histogram> histograms = {};
  /// Seconds since 1970. RunLogger::log() fills it in where it is 0.
  double time = 0;
};

/// How far a train() call may go, for the progress bar.
struct RunPlan {
  std::int64_t first_step = 0;
  std::int64_t planned_steps = 0;  ///< 0: unknown
};

/// A train() call that begins, or goes on after `plan.first_step` updates.
struct RunStart {
  RunPlan plan = {};
  /// The same in every process that goes on with the run.
  std::string run_id = {};
  std::string config = "{}";  ///< JSON text
  /// Of libraries, for example {"torch", "2.13.0"}.
  std::vector<std::pair<std::string, std::string>> versions = {};
  std::optional<std::uint64_t> seed = {};
  bool console_only = false;  ///< nothing of it is kept
};

/// Writes events somewhere. Called on the main process only, from the training thread, in order. What it
/// throws costs the event and brings a warning, but does not stop the training.
class Sink {
 public:
  virtual ~Sink() = default;
  /// Comes before the events of each train() call.
  virtual void begin(const RunStart& /*start*/) {}
  virtual void write(const LogEvent& event) = 0;
  /// The train() call ended: make durable what was written.
  virtual void finish() {}
};

}  // namespace lockstep
