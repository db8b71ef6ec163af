#include "loop/checkpoint_keeper.hpp"

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace fs = std::filesystem;

std::optional<LatestCheckpoint> CheckpointKeeper::find(const TrainOptions& options, int rank,
                                                       const std::function<void(const std::string&)>& warn) {
  if (!options.resume_from) return {};
  if (const auto& given = options.resume_from->path()) {
    const auto path = find_checkpoint(*given, options.checkpoint_dir);
    Checkpoint checkpoint = read_checkpoint(path, rank);
    return LatestCheckpoint{.directory = fs::canonical(path), .checkpoint = std::move(checkpoint)};
  }
  return read_latest_checkpoint(options.checkpoint_dir, rank, warn);
}

void CheckpointKeeper::refuse_foreign(const TrainOptions& options, const std::string& run_id,
                                      const TrainState& state) {
  const bool explicit_path = options.resume_from && options.resume_from->path();
  for (const auto& entry : list_checkpoints(options.checkpoint_dir)) {
    if (!entry.readable) continue;
    if (entry.run_id != run_id) {
      throw message::checkpoint_directory_not_empty(options.checkpoint_dir.string(), entry.directory.string());
    }
    const bool newer = std::pair(entry.step, entry.batches) > std::pair(state.step, state.batches);
    if (newer && explicit_path) {
      throw message::newer_checkpoint_exists(options.checkpoint_dir.string(), entry.directory.string());
    }
  }
}

bool CheckpointKeeper::is_saved(const Position& position) const {
  // Paths to one folder can differ, by links say.
  std::error_code missing;
  return saved_ && saved_->position == position &&
         fs::equivalent(saved_->directory.parent_path(), writer_->root(), missing);
}

const fs::path& CheckpointKeeper::save(const Position& position, const Checkpoint& checkpoint) {
  saved_ = Saved{position, writer_->save(checkpoint)};
  return saved_->directory;
}

void CheckpointKeeper::name(const CheckpointNames& names, const std::optional<std::int64_t>& keep,
                            const std::string& run_id) {
  writer_->name("last", saved_->directory);
  if (names.best) writer_->name("best", saved_->directory);
  if (names.final) writer_->name("final", saved_->directory);
  if (keep) writer_->retire(*keep, run_id);
}

}  // namespace lockstep
