// The one way a checkpoint gets to disk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "files/checkpoint.hpp"

namespace lockstep {

/// Owns a checkpoint folder while it lives: creates it, locks it, removes temporary folders of writers that the
/// lock proves dead, saves, names and retires checkpoints.
///
/// Errors: FileError `checkpoint-directory-in-use`, `checkpoint-lock-lost`, `cannot-create-directory`,
/// `cannot-write-file`. A failed save leaves every older checkpoint and every name as it was, and no temporary folder.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(std::filesystem::path root);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  [[nodiscard]] const std::filesystem::path& root() const;

  /// The folder that save() will make of a state at this step, if nobody else puts something in its place.
  [[nodiscard]] std::filesystem::path folder_of(std::int64_t step) const;

  /// Writes a temporary folder, fsyncs its files and itself, renames it, fsyncs its parent. Returns the
  /// folder.
  std::filesystem::path save(const Checkpoint& checkpoint);

  /// Points `last`, `best` or `final` to a step folder in root(); atomic and durable.
  void name(const std::string& name, const std::filesystem::path& directory);

  /// Removes a name, if it is there.
  void remove_name(const std::string& name);

  /// Keeps the `keep` newest checkpoints of this run, and whatever has a name or was saved last; removes the
  /// others of the same run_id, by renaming away first. Never the newest valid one of the run, never a folder
  /// that holds a file of somebody else. Returns what is gone.
  std::vector<std::filesystem::path> retire(std::int64_t keep, const std::string& run_id);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
