// What a checkpoint holds, and how one is read.
//
//   checkpoints/step-00001875/       complete or absent
//     manifest.json                  format version, files with size and CRC-32C, and all that is not a
//     tensor model.safetensors  ema.safetensors  optimizer.safetensors      keyed by parameter name
//     objective.safetensors  registered.safetensors                         where there is something
//     rank-00000.safetensors         each rank's own: generator states
//   checkpoints/{last,best,final}    symbolic links to a folder beside them, replaced atomically
//
// A state saved again at the same step (after skipped windows, say) goes to step-00001875-2, and so on. Order
// comes from the manifest (state.step, state.batches, save_index), never from names or times.
//
// The manifest's last member, `manifest_crc32c`, is a line of fixed form with the CRC-32C of all bytes before
// it, so that no byte of a checkpoint can change unnoticed. Inside a step folder no symbolic link is
// followed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/files/checkpoint_folder.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

inline constexpr int checkpoint_format_version = 1;

struct Checkpoint {
  /// What the Trainer stores, with at least `run_id` (string), `save_index` (integer) and `state` (object
  /// with `step` and `batches`). `format_version` and `files` are added by the writer and checked by the
  /// reader.
  nlohmann::json manifest;
  NamedTensors model = {};
  NamedTensors ema = {};         ///< empty: no file
  NamedTensors optimizer = {};   ///< empty: no file
  NamedTensors objective = {};   ///< empty: no file
  NamedTensors registered = {};  ///< the user's own objects, `<object>/<tensor>`; empty: no file
  NamedTensors rank = {};        ///< this rank's own; empty when read if the checkpoint has none for this rank
  /// Of ranks 1, 2, ... when it is written: what safetensors_bytes() made of theirs.
  std::vector<std::string> other_ranks = {};
};

/// The step folder that `path`, a folder or a name, leads to. Errors: CheckpointError `checkpoint-not-found`,
/// `damaged-checkpoint`.
std::filesystem::path step_folder_of(const std::filesystem::path& path);

/// Reads one checkpoint folder, or a name that leads to one; every size and checksum is verified first.
/// Errors: CheckpointError `checkpoint-not-found`, `damaged-checkpoint`, `checkpoint-format-version`.
Checkpoint read_checkpoint(const std::filesystem::path& path, int rank = 0);

/// The tensors of one file of a checkpoint, model_file_name for example, and none if it has no such file. All of the
/// checkpoint is verified. Throws the same errors.
NamedTensors read_checkpoint_file(const std::filesystem::path& path, const std::string& file_name);

/// `given` if something is there, else what is at `given` below `root`; the name of what is to be read.
/// Errors: CheckpointError `checkpoint-not-found`, which names both.
std::filesystem::path find_checkpoint(const std::filesystem::path& given, const std::filesystem::path& root);

/// The step folders below one root, listed again and again: a manifest is read again only where its file has changed.
class CheckpointList {
 public:
  explicit CheckpointList(std::filesystem::path root);
  ~CheckpointList();
  CheckpointList(const CheckpointList&) = delete;
  CheckpointList& operator=(const CheckpointList&) = delete;

  /// What list_checkpoints() returns. Throws the same errors.
  [[nodiscard]] std::vector<CheckpointEntry> read();
  /// Saves one reading: `manifest` was just written into this step folder.
  void add(const std::filesystem::path& directory, const nlohmann::json& manifest);

 private:
  struct Known;
  std::filesystem::path root_;
  std::map<std::filesystem::path, Known> known_;  // by folder: those that were there and readable the last time, or added
};

struct LatestCheckpoint {
  std::filesystem::path directory;
  Checkpoint checkpoint;
};

/// The newest checkpoint that verifies, or nothing if there is no step folder at all. Each damaged one that
/// is passed over is reported to `warn`. Errors: CheckpointError `no-valid-checkpoint` if there are folders
/// and none verifies.
std::optional<LatestCheckpoint> read_latest_checkpoint(const std::filesystem::path& root, int rank,
                                                       const std::function<void(const std::string&)>& warn);

}  // namespace lockstep
