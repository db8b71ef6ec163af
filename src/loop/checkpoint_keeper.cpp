#include "loop/checkpoint_keeper.hpp"

#include <utility>

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
    if (!entry.readable()) continue;
    if (entry.run_id != run_id) {
      throw message::checkpoint_directory_not_empty(options.checkpoint_dir.string(), entry.directory.string());
    }
    const bool newer = std::pair(entry.step, entry.batches) > std::pair(state.step, state.batches);
    if (newer && explicit_path) {
      throw message::newer_checkpoint_exists(options.checkpoint_dir.string(), entry.directory.string());
    }
  }
}

void CheckpointKeeper::open(const fs::path& root, bool in_background) {
  writer_ = std::make_unique<CheckpointWriter>(root);
  if (in_background) background_ = std::make_unique<BackgroundWriter>(*writer_);
  failure_ = nullptr;
}

void CheckpointKeeper::close() {
  wait();
  background_.reset();
  writer_.reset();
}

bool CheckpointKeeper::is_saved(const Position& position) {
  if (saved_ && saved_->position == position) wait();
  // Paths to one folder can differ, by links say.
  std::error_code missing;
  return saved_ && saved_->position == position &&
         fs::equivalent(saved_->directory.parent_path(), writer_->root(), missing);
}

void CheckpointKeeper::wait() {
  if (!background_) return;
  background_->wait();
  note_failure();
}

void CheckpointKeeper::note_failure() {
  if (!background_) return;
  if (auto failure = background_->take_failure()) {
    if (!failure_) failure_ = std::move(failure);
    saved_.reset();
  }
}

std::exception_ptr CheckpointKeeper::take_failure() {
  note_failure();
  return std::exchange(failure_, nullptr);
}

std::optional<fs::path> CheckpointKeeper::take_saved() {
  if (told_ || busy()) return {};
  note_failure();
  told_ = true;
  return saved_ ? std::optional(saved_->directory) : std::nullopt;
}

fs::path CheckpointKeeper::save(const Position& position, SaveJob job, bool in_background) {
  wait();
  saved_.reset();
  fs::path directory;
  if (in_background && background_) {
    directory = writer_->folder_of(position.state.step);
    background_->start(std::move(job));
  } else {
    directory = run(*writer_, job);
  }
  saved_ = Saved{position, directory};
  told_ = false;
  return directory;
}

void CheckpointKeeper::name(const std::vector<std::string>& names, const std::optional<std::int64_t>& keep,
                            const std::string& run_id) {
  wait();
  for (const auto& name : names) writer_->name(name, saved_->directory);
  if (keep) writer_->retire(*keep, run_id);
}

}  // namespace lockstep
