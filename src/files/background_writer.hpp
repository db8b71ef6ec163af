// Writes a state in a thread of its own while training goes on.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "files/checkpoint.hpp"
#include "files/checkpoint_writer.hpp"
#include "files/staging.hpp"

namespace lockstep {

/// What to do about a state, in this order.
struct SaveJob {
  Checkpoint checkpoint = {};
  std::vector<std::string> names = {};    ///< to point to it once it is saved
  std::optional<std::int64_t> keep = {};  ///< retire older checkpoints of the run down to this number; unset: none
  std::string run_id = {};
};

/// Saves, names, and retires. Returns the folder. Errors: those of CheckpointWriter.
std::filesystem::path run(CheckpointWriter& writer, const SaveJob& job);

/// One job at a time, in a thread that lives as long as this. The thread takes no signals, so that handlers run
/// elsewhere, and no part in Torch's parallel regions. Not itself thread-safe: all members are called from one thread.
///
/// Ownership: refers to the writer, which nobody else uses while busy().
class BackgroundWriter {
 public:
  explicit BackgroundWriter(CheckpointWriter& writer);
  /// Waits for the job under way.
  ~BackgroundWriter();
  BackgroundWriter(const BackgroundWriter&) = delete;
  BackgroundWriter& operator=(const BackgroundWriter&) = delete;

  /// A job is under way.
  [[nodiscard]] bool busy() const;
  void wait();

  /// Waits for the job before, copies what the checkpoint's tensors hold, and returns. `job` may change its tensors from
  /// then on.
  void start(SaveJob job);

  /// What a job has thrown since the last call, the newest one; null: nothing.
  std::exception_ptr take_failure();

 private:
  void work();

  CheckpointWriter& writer_;
  Staging staging_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<SaveJob> job_;
  std::exception_ptr failure_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace lockstep
