// What a run reports, and the interface of those who write it down.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// One thing that happened in a run.
struct LogEvent {
  /// start, resume, train, evaluate, checkpoint, skip, stop, error, end
  std::string event;
  std::int64_t step = 0;     ///< successful updates
  std::int64_t epoch = 0;    ///< completed epochs
  std::int64_t samples = 0;  ///< samples over all ranks
  /// Named numbers, for example {"train/loss", 0.31}. Not-finite ones are kept as they are.
  std::vector<std::pair<std::string, double>> values = {};
  /// Free text: a path, a reason, a message. Empty if there is none.
  std::string text = {};
};

/// Writes events somewhere. Called on the main process only, from the training thread, in order.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const LogEvent& event) = 0;
  /// The run ended: make durable what was written.
  virtual void finish() {}
};

}  // namespace lockstep
