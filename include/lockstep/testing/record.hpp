// What a run leaves behind, and how two of them are compared.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/config/train_state.hpp"
#include "lockstep/tensors/named_tensors.hpp"
#include "lockstep/watch/sink.hpp"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace lockstep::testing {

/// What the runs of an invariant showed.
struct Finding {
  /// What differs first, as a sentence; empty: the invariant holds.
  std::string difference = {};

  [[nodiscard]] bool holds() const { return difference.empty(); }
};

/// A run at one moment: everything that the next update depends on, and what was logged until then.
struct Record {
  TrainState state;
  /// Copies on the CPU: `model/...`, `averaged/...`, `optimizer/<parameter>/<field>`, `generator.cpu`.
  NamedTensors tensors;
  std::vector<LogEvent> events;
};

/// All digits, so that numbers that differ look different.
[[nodiscard]] std::string text_of(double number);

/// Copies on the CPU that nothing else refers to.
[[nodiscard]] NamedTensors copies(const NamedTensors& tensors);

/// The tensors of a Record. `averages` may be empty. The optimizer is asked through torch's own
/// serialization, so what lockstep forgets to save is still compared.
[[nodiscard]] NamedTensors run_tensors(const torch::nn::Module& module,
                                       const torch::optim::Optimizer& optimizer, const NamedTensors& averages,
                                       at::Device device);

/// `record` without its tensors whose names begin with `prefix`.
[[nodiscard]] Record without(Record record, std::string_view prefix);

/// The first bit in which two records differ, as a part of a sentence that says what, where and by how much;
/// empty if there is none. Of the events, `train`, `evaluate` and `skip` are compared, in order.
[[nodiscard]] std::string first_difference(const Record& expected, const Record& found);

/// The first tensor that differs by more than `tolerance` times the largest change of that tensor since
/// `start`; empty if there is none. The three hold the same names.
[[nodiscard]] std::string first_difference(const NamedTensors& start, const NamedTensors& expected,
                                           const NamedTensors& found, double tolerance);

/// The log of a run that was cut off and resumed: what came up to its last checkpoint, then what the resumed
/// run wrote.
[[nodiscard]] std::vector<LogEvent> merged_events(std::vector<LogEvent> cut_off,
                                                  const std::vector<LogEvent>& resumed);

/// Keeps a run's events.
class EventRecorder final : public Sink {
 public:
  void write(const LogEvent& event) override { events_.push_back(event); }
  [[nodiscard]] const std::vector<LogEvent>& events() const { return events_; }

 private:
  std::vector<LogEvent> events_;
};

/// A folder for the files of a run, in the system's temporary directory (TMPDIR); removed with all it holds.
/// Errors: FileError `cannot-create-directory`.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ~ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::testing
