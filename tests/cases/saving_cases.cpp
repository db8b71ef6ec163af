// Failures of other training loops with checkpoints: writing, keeping, hostile files. What a whole run adds;
// the writer's own fail points are in unit/files.
#include <sys/resource.h>

#include "files/checkpoint.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
namespace fs = std::filesystem;

namespace {

constexpr auto every_step = Interval{1, Interval::Unit::step};
/// At once, so that it is known at each update what lies on the disk.
constexpr TrainConfig save_every_step{.epochs = 1, .checkpoint_every = every_step, .background_saves = false};

using Folders = std::vector<std::string>;

/// Every folder and every name in `root` leads to a checkpoint that verifies.
void check_all_load(const fs::path& root) {
  for (const auto& folder : checkpoint_folders(root)) CATCH_CHECK_NOTHROW(verify_checkpoint(root / folder));
  for (const auto* name : {"last", "best", "final"}) {
    if (fs::is_symlink(root / name)) CATCH_CHECK_NOTHROW(verify_checkpoint(root / name));
  }
}

/// A run of LEDGER over `updates` updates that saves each and judges by `scores`.
TrainState train_script(const fs::path& root, std::vector<double> scores, std::int64_t keep) {
  const auto updates = static_cast<std::int64_t>(scores.size());
  OneWeightRun run(numbered_batches(updates), ledger,
                   {.evaluation_set = numbered_batches(1), .evaluation_step = script(std::move(scores))});
  return run.trainer.train({.epochs = 1,
                            .evaluate_every = every_step,
                            .checkpoint_every = every_step,
                            .keep_checkpoints = keep,
                            .monitor = Monitor("validation/score")},
                           {.checkpoint_dir = root});
}

}  // namespace

CATCH_TEST_CASE("a run killed at any byte of a save resumes from the save before", "[T-29]") {
  for (rlim_t bytes = 0; bytes < 6000; bytes += 250) {
    const TemporaryDirectory directory;
    const int status = in_child_process([&] {
      const auto step = [&](OneWeight& model, const at::Tensor& batch) {
        // The second save ends this process, by a signal, after so many bytes of a file.
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_CORE, &none);
        const rlimit limit{model.value() == -1 ? bytes : RLIM_INFINITY, RLIM_INFINITY};
        ::setrlimit(RLIMIT_FSIZE, &limit);
        return ledger(model, batch);
      };
      OneWeightRun killed(numbered_batches(4), step);
      (void)killed.trainer.train(save_every_step, {.checkpoint_dir = directory.path()});
    });
    CATCH_INFO("killed after " << bytes << " bytes of a file");
    // Beyond the size of every file nothing is left to be killed by.
    if (!ended_by(status, SIGXFSZ)) {
      CATCH_REQUIRE(bytes > 5000);
      break;
    }

    Tape tape;
    OneWeightRun resumed(numbered_batches(4), recorded(tape));
    const auto state =
        resumed.trainer.train(save_every_step, {.checkpoint_dir = directory.path(), .resume_from = latest});
    CATCH_CHECK(tape == Tape{1, 2, 3});
    CATCH_CHECK(state.step == 4);
    CATCH_CHECK(resumed.w() == -4.0);
    // Nothing of the killed save is left.
    CATCH_CHECK(checkpoint_folders(directory.path()).size() == 4);
    for (const auto& entry : fs::directory_iterator(directory.path())) {
      CATCH_CHECK_FALSE(entry.path().filename().string().starts_with(".tmp"));
    }
  }
}

CATCH_TEST_CASE("a run whose newest checkpoint was torn goes on from the one before", "[T-29]") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(4), ledger);
  (void)first.trainer.train({.epochs = 1, .max_steps = 3, .checkpoint_every = every_step},
                            {.checkpoint_dir = directory.path()});
  fs::resize_file(directory.path() / "step-00000003" / "model.safetensors", 10);

  Tape tape;
  OneWeightRun second(numbered_batches(4), recorded(tape));
  (void)second.trainer.train(save_every_step, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(tape == Tape{2, 3});
  CATCH_CHECK(second.w() == -4.0);
}

CATCH_TEST_CASE("an old checkpoint is removed only when the new one is safe", "[T-31]") {
  const TemporaryDirectory directory;
  TrainConfig config = save_every_step;
  config.keep_checkpoints = 1;
  {
    std::optional<FileSizeLimit> full_disk;
    const auto step = [&](OneWeight& model, const at::Tensor& batch) {
      if (model.value() == -1) full_disk.emplace(1000);
      return ledger(model, batch);
    };
    OneWeightRun failing(numbered_batches(2), step);
    CATCH_CHECK(thrown_id<FileError>([&] {
                  (void)failing.trainer.train(config, {.checkpoint_dir = directory.path()});
                }) == "cannot-write-file");
  }
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000001"});
  CATCH_CHECK(saved_w(directory.path() / "last") == -1.0);

  OneWeightRun again(numbered_batches(2), ledger);
  (void)again.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000002"});
  CATCH_CHECK(saved_w(directory.path() / "last") == -2.0);
}

CATCH_TEST_CASE("retention keeps the newest and the best", "[T-34]") {
  const TemporaryDirectory directory;
  const auto state = train_script(directory.path(), {.1, .2, .3, .4}, 2);
  CATCH_CHECK(state.best_step == 1);
  CATCH_CHECK(checkpoint_folders(directory.path()) ==
              Folders{"step-00000001", "step-00000003", "step-00000004"});
  CATCH_CHECK(saved_w(directory.path() / "best") == -1.0);
  CATCH_CHECK(saved_w(directory.path() / "last") == -4.0);
  CATCH_CHECK(saved_w(directory.path() / "final") == -4.0);
  check_all_load(directory.path());
}

CATCH_TEST_CASE("keeping one checkpoint never leaves none", "[T-35]") {
  const TemporaryDirectory directory;
  CATCH_SECTION("without a monitor") {
    std::vector<Folders> seen;
    const auto step = [&](OneWeight& model, const at::Tensor& batch) {
      if (model.value() < 0) {
        seen.push_back(checkpoint_folders(directory.path()));
        check_all_load(directory.path());
      }
      return ledger(model, batch);
    };
    OneWeightRun run(numbered_batches(3), step);
    TrainConfig config = save_every_step;
    config.keep_checkpoints = 1;
    (void)run.trainer.train(config, {.checkpoint_dir = directory.path()});
    CATCH_CHECK(seen == std::vector<Folders>{{"step-00000001"}, {"step-00000002"}});
  }
  CATCH_SECTION("with every checkpoint the best so far") {
    (void)train_script(directory.path(), {.3, .2, .1}, 1);
    CATCH_CHECK(saved_w(directory.path() / "best") == -3.0);
  }
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000003"});
  check_all_load(directory.path());
}

CATCH_TEST_CASE("retention goes by the step, not by the name's length or a file's time", "[T-37]") {
  const auto kept_after = [](std::int64_t updates) {
    const TemporaryDirectory directory;
    // Saved first what is younger by its time.
    const auto step = [&](OneWeight& model, const at::Tensor& batch) {
      const auto age = std::chrono::hours(static_cast<int>(-model.value()));
      for (const auto& folder : checkpoint_folders(directory.path())) {
        if (fs::last_write_time(directory.path() / folder) >
            fs::file_time_type::clock::now() - std::chrono::minutes(30)) {
          fs::last_write_time(directory.path() / folder, fs::file_time_type::clock::now() - age);
        }
      }
      return ledger(model, batch);
    };
    OneWeightRun run(numbered_batches(updates), step);
    TrainConfig config = save_every_step;
    config.keep_checkpoints = 2;
    (void)run.trainer.train(config, {.checkpoint_dir = directory.path()});
    return checkpoint_folders(directory.path());
  };
  CATCH_CHECK(kept_after(11) == Folders{"step-00000010", "step-00000011"});
  CATCH_CHECK(kept_after(101) == Folders{"step-00000100", "step-00000101"});
}

CATCH_TEST_CASE("a new run refuses a folder with another run's checkpoints and leaves it alone", "[T-38]") {
  const TemporaryDirectory directory;
  OneWeightRun former(numbered_batches(7), ledger);
  (void)former.trainer.train(save_every_step, {.checkpoint_dir = directory.path()});
  const auto before = checkpoint_folders(directory.path());

  OneWeightRun run(numbered_batches(7), ledger);
  TrainConfig config = save_every_step;
  config.keep_checkpoints = 3;
  CATCH_CHECK(thrown_id<CheckpointError>([&] {
                (void)run.trainer.train(config, {.checkpoint_dir = directory.path()});
              }) == "checkpoint-directory-not-empty");
  CATCH_CHECK(run.w() == 0.0);
  CATCH_CHECK(checkpoint_folders(directory.path()) == before);
  CATCH_CHECK(saved_w(directory.path() / "final") == -7.0);
}

CATCH_TEST_CASE("scores that look alike when rounded do not collide", "[T-43]") {
  const TemporaryDirectory directory;
  const auto state = train_script(directory.path(), {.58331, .58334, .58333, .58330}, 2);
  CATCH_CHECK(state.best_step == 4);
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000003", "step-00000004"});
  CATCH_CHECK(saved_w(directory.path() / "best") == -4.0);
  check_all_load(directory.path());
}

CATCH_TEST_CASE("a checkpoint with a file that runs code when unpickled is refused, and the model stays",
                "[T-101]") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(2), ledger, {.ema_decay = 0.5});
  (void)first.trainer.train(save_every_step, {.checkpoint_dir = directory.path() / "checkpoints"});
  const auto victim = directory.path() / "checkpoints" / "step-00000002";
  const auto sentinel = directory.path() / "sentinel";
  const std::string payload = "cos\nsystem\n(S'touch " + sentinel.string() + "'\ntR.";

  Folders files;
  for (const auto& entry : fs::directory_iterator(victim)) files.push_back(entry.path().filename());
  CATCH_REQUIRE(files.size() >= 4);
  for (const auto& file : files) {
    CATCH_INFO(file);
    const std::string good = read_text(victim / file);
    write_text(victim / file, payload);
    OneWeightRun second(numbered_batches(2), ledger, {.ema_decay = 0.5});
    CATCH_CHECK(thrown_id<CheckpointError>([&] {
                  (void)second.trainer.train({.epochs = 1}, {.resume_from = victim});
                }) == "damaged-checkpoint");
    CATCH_CHECK(second.w() == 0.0);
    CATCH_CHECK(second.trainer.state() == TrainState{});
    write_text(victim / file, good);
  }
  CATCH_CHECK_FALSE(fs::exists(sentinel));
}
