// Which checkpoint a run goes on from, and which state is saved where and under which names.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "files/background_writer.hpp"
#include "files/checkpoint.hpp"
#include "files/checkpoint_writer.hpp"
#include "lockstep/config/train_state.hpp"
#include "lockstep/loop/train_options.hpp"

namespace lockstep {

/// What tells one state of a run from another.
struct Position {
  TrainState state;  ///< without how the call ended
  std::set<std::string> evaluated;
  std::set<std::string> pending;

  bool operator==(const Position&) const = default;
};

/// Saves each state of a run once. Lives as long as the run's Trainer; writes between open() and close().
class CheckpointKeeper {
 public:
  /// The checkpoint that `options` ask to go on from; nothing if there is none. Errors: CheckpointError.
  [[nodiscard]] static std::optional<LatestCheckpoint> find(const TrainOptions& options, int rank,
                                                            const std::function<void(const std::string&)>& warn);

  /// Refuses a folder that holds another run, or a later state of this one than the state it is to go on from: that
  /// would mix two histories. Errors: CheckpointError `checkpoint-directory-not-empty`, `newer-checkpoint-exists`.
  static void refuse_foreign(const TrainOptions& options, const std::string& run_id, const TrainState& state);

  /// Locks and prepares the folder. `in_background`: states may be written while the run goes on. Errors: those of
  /// CheckpointWriter.
  void open(const std::filesystem::path& root, bool in_background);
  /// Waits for what is still being written.
  void close();
  [[nodiscard]] bool is_open() const { return writer_ != nullptr; }

  /// This state lies in this folder already.
  void saved_before(const Position& position, const std::filesystem::path& directory) {
    saved_ = Saved{position, directory};
  }
  /// Waits if this very state is being written.
  [[nodiscard]] bool is_saved(const Position& position);

  /// A state is still being written.
  [[nodiscard]] bool busy() const { return background_ && background_->busy(); }
  void wait();
  /// What went wrong in the background first since the last call; null: nothing.
  [[nodiscard]] std::exception_ptr take_failure();

  /// The folder of the newest state, once it is on the disk; each is given once.
  [[nodiscard]] std::optional<std::filesystem::path> take_saved();

  /// Waits for the state before, then writes this one and names it, or sees to it that this is done while the run goes
  /// on. Returns its folder. Errors: those of CheckpointWriter, of what is done at once.
  std::filesystem::path save(const Position& position, SaveJob job, bool in_background);
  /// Names the state that was saved last, and retires older ones down to `keep`, if it is set.
  void name(const std::vector<std::string>& names, const std::optional<std::int64_t>& keep, const std::string& run_id);
  /// The run goes on, so that no state is its final one.
  void remove_final() { writer_->remove_name("final"); }

 private:
  void note_failure();

  struct Saved {
    Position position;
    std::filesystem::path directory;
  };

  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<BackgroundWriter> background_;  // null: everything is done at once
  std::optional<Saved> saved_;                    // or handed over
  std::exception_ptr failure_;
  bool told_ = true;  // take_saved() gave it
};

}  // namespace lockstep
