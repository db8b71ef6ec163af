// What lies in a folder of checkpoints: listing, verifying and retiring them, with or without a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep {

/// One committed step folder, by its manifest alone.
struct CheckpointEntry {
  std::filesystem::path directory;
  std::string run_id = {};
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t batches = 0;
  std::int64_t save_index = 0;
  std::vector<std::string> files = {};  ///< that the manifest lists
  std::uint64_t bytes = 0;              ///< of these files
  std::vector<std::string> names = {};  ///< those of last, best and final that lead here
  std::string problem = {};             ///< why the manifest cannot be read: it is missing, damaged or foreign; else empty

  [[nodiscard]] bool readable() const { return problem.empty(); }
};

/// All step folders below `root`, newest first, unreadable ones last. Strangers' files are ignored. An absent root has
/// none. Errors: FileError `cannot-read-file`.
[[nodiscard]] std::vector<CheckpointEntry> list_checkpoints(const std::filesystem::path& root);

/// Checks everything about one checkpoint, a step folder or a name, that is checked before it is used: its manifest, and
/// each file's size, layout and checksums, in constant memory.
/// Errors: CheckpointError `checkpoint-not-found`, `damaged-checkpoint`, `checkpoint-format-version`.
void verify_checkpoint(const std::filesystem::path& path);

/// What prune_checkpoints() would remove. Reads the newest checkpoint as a whole, to know that it is valid.
[[nodiscard]] std::vector<std::filesystem::path> superfluous_checkpoints(const std::filesystem::path& root,
                                                                         std::int64_t keep);

/// Keeps the `keep` newest checkpoints of each run in `root` and removes others, as TrainConfig::keep_checkpoints does
/// while a run goes on: never what `last`, `best` or `final` name, the newest valid one of a run, an unreadable one, or a
/// folder that holds a file of somebody else. What dead writers left is removed too. Returns the folders that are gone.
/// Errors: FileError `checkpoint-directory-in-use`, `cannot-write-file`, CheckpointError `checkpoint-not-found`.
std::vector<std::filesystem::path> prune_checkpoints(const std::filesystem::path& root, std::int64_t keep);

}  // namespace lockstep
