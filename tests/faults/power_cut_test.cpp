// The power is cut after any operation of a save, a naming, a retirement or a whole run.
#include <iostream>

#include "faults/file_recorder.hpp"
#include "faults/power_cut.hpp"
#include "files/checkpoint.hpp"
#include "files/checkpoint_writer.hpp"
#include "support/fixtures.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

using namespace lockstep;
using namespace lockstep::test;
namespace fs = std::filesystem;

namespace {

/// In the recorded folder; does not exist at first.
constexpr const char* checkpoints = "runs/checkpoints";

using Names = std::map<std::string, std::int64_t>;

/// What may be found after an operation: a step, 0 where there is no checkpoint, and the steps that names
/// lead to.
struct Expected {
  std::int64_t oldest = 0;
  std::int64_t newest = 0;
  std::optional<std::pair<Names, Names>> names = {};  ///< before and after; unset: any valid ones

  bool operator==(const Expected&) const = default;
};

std::int64_t step_in(const Checkpoint& checkpoint) { return checkpoint.manifest.at("state").at("step"); }

/// The only weight of small_checkpoint(), and of a run of ledger, is its step or minus that.
bool holds_its_step(const Checkpoint& checkpoint) {
  const auto& weight = checkpoint.model.at(0).second;
  return checkpoint.model.size() == 1 && !checkpoint.rank.empty() &&
         weight.abs().eq(static_cast<double>(step_in(checkpoint))).all().item<bool>();
}

std::int64_t latest_step(const fs::path& root) {
  const auto latest =
      read_latest_checkpoint(root, 0, [](const std::string& warning) { throw std::runtime_error(warning); });
  if (!latest) return 0;
  if (!holds_its_step(latest->checkpoint)) throw std::runtime_error("latest holds other numbers");
  return step_in(latest->checkpoint);
}

void require(bool holds, const std::string& otherwise) {
  if (!holds) throw std::runtime_error(otherwise);
}

/// Throws what is wrong in the checkpoint folder that a power cut left.
void check(const fs::path& root, const Expected& expected) {
  const auto latest = latest_step(root);
  require(latest >= expected.oldest && latest <= expected.newest, "latest is step " + std::to_string(latest));
  for (const auto* name : {"last", "best", "final"}) {
    const bool there = fs::is_symlink(fs::symlink_status(root / name));
    const auto step = there ? step_in(read_checkpoint(root / name)) : 0;
    const auto in = [&](const Names& names) { return names.contains(name) ? names.at(name) : 0; };
    require(!expected.names || step == in(expected.names->first) || step == in(expected.names->second),
            std::string(name) + " is step " + std::to_string(step));
  }
  for (const auto& entry : list_checkpoints(root)) verify_checkpoint(entry.directory);

  { const CheckpointWriter next(root); }  // cleans up
  for (const auto& entry : fs::directory_iterator(root)) {
    require(!entry.path().filename().string().starts_with(".tmp"), "left over: " + entry.path().string());
  }
  require(latest_step(root) == latest, "another latest after cleaning up");
}

struct Score {
  std::size_t outcomes = 0;  ///< combinations of what was done and lost
  std::size_t cuts = 0;      ///< different folders among them, or expectations
  std::vector<std::string> failures;
};

/// Cuts the power after each number of operations from `first` on, and checks what may be left against
/// `expected[number]`. Ends after `most_failures`.
Score cut_power(const Recording& recording, const std::vector<Expected>& expected, std::size_t samples,
                std::size_t first = 0, std::size_t most_failures = SIZE_MAX) {
  const TemporaryDirectory scratch;
  const auto disk_path = scratch.path() / "disk";
  Score score;
  std::set<std::string> seen;
  for (std::size_t count = first; count < expected.size(); ++count) {
    if (count > first && expected[count] != expected[count - 1]) seen.clear();
    each_outcome(recording, count, samples, /*seed=*/7, [&](const Fates& fates) {
      if (score.failures.size() >= most_failures) return;
      ++score.outcomes;
      const Disk disk(recording, fates);
      if (!seen.insert(disk.text()).second) return;
      ++score.cuts;
      disk.make(disk_path);
      try {
        check(disk_path / checkpoints, expected[count]);
      } catch (const std::exception& error) {
        score.failures.push_back("after operation " + std::to_string(count) + ", " +
                                 (count > 0 ? recording.operations[count - 1].text : "none") + ": " +
                                 error.what());
      }
      fs::remove_all(disk_path);
    });
  }
  return score;
}

/// Prints and checks that no power cut lost anything.
void require_all_survived(const std::string& what, const Score& score) {
  std::cout << what << ": " << score.cuts - score.failures.size() << " of " << score.cuts
            << " power cuts survived, of " << score.outcomes << " outcomes\n";
  CATCH_CHECK(score.failures == std::vector<std::string>());
  CATCH_CHECK(score.cuts > 200);
}

/// An empty folder, recorded.
struct RecordedFolder {
  RecordedFolder() : recorder(directory.path()) {}

  /// Fails if anything changed the folder but what was recorded.
  void require_complete() const {
    const auto& recording = recorder.recording();
    const Disk all(recording, Fates(recording.operations.size(), Fate::whole));
    CATCH_REQUIRE(all.text() == text_of_folder(directory.path()));
  }

  TemporaryDirectory directory;
  FileRecorder recorder;
};

/// A writer saves, names, and retires, as runs let it.
struct WriterSession : RecordedFolder {
  WriterSession() {
    std::optional<CheckpointWriter> writer;
    act([&] { writer.emplace(directory.path() / checkpoints); });
    for (std::int64_t step = 1; step <= 3; ++step) {
      latest = step;
      fs::path saved;
      act([&] { saved = writer->save(small_checkpoint(step, step)); });
      std::vector<std::string> new_names = {"last"};
      if (step == 1) new_names.push_back("best");
      if (step == 3) new_names.push_back("final");
      for (const auto& name : new_names) {
        names[name] = step;
        act([&] { writer->name(name, saved); });
      }
      act([&] { writer->retire(1, "run"); });
    }
    names.erase("final");
    act([&] { writer->remove_name("final"); });
  }

  std::vector<Expected> expected;  ///< by the number of operations done

 private:
  /// `change` leads from what was found before to `latest` and `names`.
  void act(const auto& change) {
    change();
    const auto before = expected.empty() ? Expected{.names = {{{}, {}}}} : expected.back();
    expected.resize(recorder.size(), {before.newest, latest, {{before.names->second, names}}});
    expected.push_back({latest, latest, {{names, names}}});
  }

  std::int64_t latest = 0;
  Names names;
};

CATCH_TEST_CASE(
    "after a power cut at any operation of a save, a naming or a retirement, the checkpoint before or the "
    "one after is found") {
  const WriterSession session;
  session.require_complete();
  require_all_survived("save, name, retire", cut_power(session.recorder.recording(), session.expected, 256));
}

CATCH_TEST_CASE(
    "a sync left out anywhere in a save, a naming or a retirement is found by cutting the power") {
  const WriterSession session;
  std::size_t syncs = 0;
  std::vector<std::string> unnoticed;
  Recording recording = session.recorder.recording();
  for (std::size_t i = 0; i < recording.operations.size(); ++i) {
    if (recording.operations[i].kind != Operation::Kind::sync) continue;
    ++syncs;
    const Operation nothing{.kind = Operation::Kind::entries, .node = 0, .text = "a sync that was left out"};
    const Operation left_out = std::exchange(recording.operations[i], nothing);
    if (cut_power(recording, session.expected, 8, /*first=*/i, /*most_failures=*/1).failures.empty()) {
      unnoticed.push_back(left_out.text);
    }
    recording.operations[i] = left_out;
  }
  std::cout << "a sync left out: found at " << syncs - unnoticed.size() << " of " << syncs << " places\n";
  CATCH_CHECK(syncs > 20);
  CATCH_CHECK(unnoticed == std::vector<std::string>());
}

/// Notes how many operations had been done when a checkpoint was reported.
struct Reports : Sink {
  explicit Reports(const FileRecorder& recorder) : recorder(recorder) {}
  void write(const LogEvent& event) override {
    if (event.event == "checkpoint") steps.emplace_back(recorder.size(), event.step);
  }
  const FileRecorder& recorder;
  std::vector<std::pair<std::size_t, std::int64_t>> steps;
};

/// Cuts the power after each operation of a run of 5 updates that saves each.
void cut_power_of_run(bool background) {
  constexpr std::int64_t updates = 5;
  const RecordedFolder folder;
  const TemporaryDirectory logs;
  RunLogger logger(logs.path() / "run", {.quiet = true});
  const auto reports = std::make_shared<Reports>(folder.recorder);
  logger.add_sink(reports);
  std::vector<std::pair<std::size_t, std::int64_t>> begun;
  const auto step = [&](OneWeight& model, const at::Tensor& batch) {
    begun.emplace_back(folder.recorder.size(), static_cast<std::int64_t>(1 - model.value()));
    return ledger(model, batch);
  };
  OneWeightRun run(numbered_batches(updates), step,
                   {.evaluation_set = numbered_batches(1),
                    .evaluation_step = script({.3, .1, .2, .4, .5}),
                    .logger = &logger});
  (void)run.trainer.train({.epochs = 1,
                           .evaluate_every = Interval{1, Interval::Unit::step},
                           .checkpoint_every = Interval{1, Interval::Unit::step},
                           .keep_checkpoints = 2,
                           .background_saves = background,
                           .monitor = Monitor("validation/score")},
                          {.checkpoint_dir = folder.directory.path() / checkpoints});
  folder.require_complete();
  CATCH_REQUIRE(reports->steps.back().second == updates);
  auto certain = reports->steps;
  if (background) {
    // One is reported when it begins to be written, and that means that the one before it is on the disk.
    for (auto& [count, at_step] : certain) --at_step;
    certain.emplace_back(folder.recorder.size(), updates);
  }

  const auto at = [](const auto& steps, std::size_t count) {
    std::int64_t last = 0;
    for (const auto& [from, at_step] : steps) {
      if (from <= count) last = at_step;
    }
    return last;
  };
  std::vector<Expected> expected;
  for (std::size_t count = 0; count <= folder.recorder.size(); ++count) {
    expected.push_back({.oldest = at(certain, count), .newest = at(begun, count)});
  }
  require_all_survived("a run of " + std::to_string(updates) + " updates",
                       cut_power(folder.recorder.recording(), expected, 256));
}

CATCH_TEST_CASE(
    "after a power cut at any operation of a run, it goes on from a checkpoint not older than the last one "
    "it reported") {
  cut_power_of_run(/*background=*/false);
}

CATCH_TEST_CASE(
    "after a power cut at any operation of a run that saves in the background, it goes on from a checkpoint "
    "not older than the last but one that it reported") {
  cut_power_of_run(/*background=*/true);
}

CATCH_TEST_CASE("a disk that takes a few bytes at a time gets the same files") {
  const TemporaryDirectory directory;
  const auto saved_in = [&](const std::string& name, std::size_t bytes) {
    const ShortWrites few(bytes);
    return text_of_folder(CheckpointWriter(directory.path() / name).save(small_checkpoint(1)));
  };
  const auto expected = saved_in("whole", SIZE_MAX);
  for (const std::size_t bytes : {1, 3, 64, 1000}) {
    CATCH_CHECK(saved_in(std::to_string(bytes), bytes) == expected);
  }
}

}  // namespace
