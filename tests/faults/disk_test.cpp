// Disks that are full, become read-only, or lose the folder, while a run saves.
#include <sys/mount.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "faults/file_recorder.hpp"
#include "files/checkpoint.hpp"
#include "support/captured_stderr.hpp"
#include "support/file_size_limit.hpp"
#include "support/fixtures.hpp"
#include "support/temporary_directory.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
namespace fs = std::filesystem;

namespace {

using Folders = std::vector<std::string>;

constexpr std::int64_t updates = 6;

/// Trains six updates of ledger, saving each, and calls `before_update` with the number of each. What it
/// warns of.
std::string train_in(const fs::path& root, bool background,
                     const std::function<void(std::int64_t)>& before_update,
                     std::string* error_id = nullptr) {
  const auto step = [&](OneWeight& model, const at::Tensor& batch) {
    before_update(static_cast<std::int64_t>(1 - model.value()));
    return ledger(model, batch);
  };
  OneWeightRun run(numbered_batches(updates), step);
  const auto train = [&] {
    (void)run.trainer.train(
        {.epochs = 1, .checkpoint_every = Interval{1, Interval::Unit::step}, .background_saves = background},
        {.checkpoint_dir = root, .resume_from = latest});
  };
  auto warnings = captured_stderr([&] {
    const auto id = thrown_id<FileError>(train);
    if (error_id) {
      *error_id = id;
    } else {
      CATCH_CHECK(id == "");
    }
  });
  CATCH_CHECK(run.w() == static_cast<double>(-updates));  // whatever the disk does, training goes on
  return warnings;
}

std::int64_t latest_step(const fs::path& root) {
  const auto found =
      read_latest_checkpoint(root, 0, [](const std::string& warning) { CATCH_FAIL_CHECK(warning); });
  if (!found) return 0;
  const std::int64_t step = found->checkpoint.manifest.at("state").at("step");
  CATCH_CHECK(saved_w(found->directory) == static_cast<double>(-step));
  return step;
}

/// Until the background writer, if there is one, has saved this step.
void wait_until_saved(const fs::path& root, std::int64_t step) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  std::error_code not_there;
  while (fs::read_symlink(root / "last", not_there) != "step-0000000" + std::to_string(step)) {
    if (std::chrono::steady_clock::now() > deadline)
      throw std::runtime_error("a save did not come to its end");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool nothing_temporary_in(const fs::path& root) {
  return std::none_of(fs::directory_iterator(root), fs::directory_iterator(),
                      [](const auto& entry) { return entry.path().filename().string().starts_with(".tmp"); });
}

/// Something mounted over a directory, while it lives.
class Mount {
 public:
  Mount(const char* source, const fs::path& path, const char* type, unsigned long flags, const char* options)
      : path_(path), mounted_(::mount(source, path.c_str(), type, flags, options) == 0) {}
  ~Mount() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  Mount(const Mount&) = delete;
  Mount& operator=(const Mount&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }

 private:
  fs::path path_;
  bool mounted_;
};

/// A folder on a small disk that can be filled and emptied; where nothing may be mounted, a limit on the
/// size of files stands for it.
class SmallDisk {
 public:
  SmallDisk() : mount_("none", directory_.path(), "tmpfs", 0, "size=256k") {
    if (!mount_.mounted()) CATCH_WARN("no disk may be mounted here; RLIMIT_FSIZE stands for a full one");
  }

  [[nodiscard]] fs::path checkpoints() const { return directory_.path() / "checkpoints"; }
  /// What the operating system says when it is full.
  [[nodiscard]] std::string cause() const { return ::strerror(mount_.mounted() ? ENOSPC : EFBIG); }

  void fill() {
    if (!mount_.mounted()) {
      limit_.emplace(4000);  // a rank's file is longer, what it says of that is shorter
      return;
    }
    std::ofstream file(directory_.path() / "filling", std::ios::binary);
    const std::string piece(1024, 'x');
    while (file.write(piece.data(), 1024).flush()) {
    }
  }
  void empty() {
    limit_.reset();
    fs::remove(directory_.path() / "filling");
  }

 private:
  TemporaryDirectory directory_;
  Mount mount_;
  std::optional<FileSizeLimit> limit_;
};

CATCH_TEST_CASE(
    "training goes on over a full disk, which is named; older checkpoints load, and saves succeed once there "
    "is space") {
  for (const bool background : {false, true}) {
    CATCH_INFO((background ? "saving in the background" : "saving in the foreground"));
    SmallDisk disk;
    const auto warnings = train_in(disk.checkpoints(), background, [&](std::int64_t update) {
      if (update == 3) {
        wait_until_saved(disk.checkpoints(), 2);
        disk.fill();
      }
      if (update == 5) {
        CATCH_CHECK(latest_step(disk.checkpoints()) == 2);
        disk.empty();
      }
    });
    CATCH_CHECK(warnings.find("a checkpoint could not be saved: [cannot-write-file]") != std::string::npos);
    CATCH_CHECK(warnings.find(disk.cause()) != std::string::npos);
    auto folders = checkpoint_folders(disk.checkpoints());
    if (background)
      std::erase(folders, "step-00000004");  // it may just have been under way when there was space
    CATCH_CHECK(folders == Folders{"step-00000001", "step-00000002", "step-00000005", "step-00000006"});
    CATCH_CHECK(latest_step(disk.checkpoints()) == 6);
    CATCH_CHECK(nothing_temporary_in(disk.checkpoints()));
  }
}

CATCH_TEST_CASE(
    "a run whose last state finds the disk full ends with that error, and the next one goes on from before") {
  for (const bool background : {false, true}) {
    CATCH_INFO((background ? "saving in the background" : "saving in the foreground"));
    SmallDisk disk;
    std::string error_id;
    const auto fill = [&](std::int64_t update) {
      if (update != 5) return;
      wait_until_saved(disk.checkpoints(), 4);
      disk.fill();
    };
    (void)train_in(disk.checkpoints(), background, fill, &error_id);
    CATCH_CHECK(error_id == "cannot-write-file");
    CATCH_CHECK(latest_step(disk.checkpoints()) == 4);
    disk.empty();
    Tape trained;
    (void)train_in(disk.checkpoints(), background, [&](std::int64_t update) { trained.push_back(update); });
    CATCH_CHECK(trained == Tape{5, 6});
    CATCH_CHECK(latest_step(disk.checkpoints()) == 6);
    CATCH_CHECK(nothing_temporary_in(disk.checkpoints()));
  }
}

CATCH_TEST_CASE("training goes on over a folder that becomes read-only, which is named (by a mount)") {
  for (const bool background : {false, true}) {
    const TemporaryDirectory directory;
    const auto root = directory.path() / "checkpoints";
    std::optional<Mount> read_only;
    std::string error_id;
    const auto warnings = train_in(
        root, background,
        [&](std::int64_t update) {
          if (update != 3) return;
          wait_until_saved(root, 2);
          read_only.emplace(root.c_str(), root, nullptr, MS_BIND, nullptr);
          ::mount(nullptr, root.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr);
        },
        &error_id);
    if (!read_only->mounted()) {
      CATCH_WARN(
          "no folder may be mounted read-only here; unit/files/checkpoint_writer_test does it by "
          "permissions");
      return;
    }
    CATCH_CHECK(error_id == "cannot-create-directory");
    CATCH_CHECK(warnings.find("Read-only file system") != std::string::npos);
    read_only.reset();
    CATCH_CHECK(latest_step(root) == 2);
    CATCH_CHECK(checkpoint_folders(root) == Folders{"step-00000001", "step-00000002"});
    (void)train_in(root, background, [](std::int64_t) {});
    CATCH_CHECK(latest_step(root) == 6);
  }
}

CATCH_TEST_CASE(
    "a checkpoint folder removed in the middle of a save ends neither the training nor the next run") {
  for (const bool background : {false, true}) {
    const TemporaryDirectory directory;
    const auto root = directory.path() / "checkpoints";
    std::optional<BeforeOpening> removal;
    std::string error_id;
    const auto warnings = train_in(
        root, background,
        [&](std::int64_t update) {
          if (update == 3) removal.emplace("/manifest.json", [&] { fs::remove_all(root); });
        },
        &error_id);
    CATCH_CHECK(removal->happened());
    CATCH_CHECK(warnings.find("a checkpoint could not be saved") != std::string::npos);
    CATCH_CHECK(warnings.find("No such file or directory") != std::string::npos);
    CATCH_CHECK(error_id != "");  // the last state lies nowhere
    removal.reset();
    (void)train_in(root, background, [](std::int64_t) {});
    CATCH_CHECK(latest_step(root) == 6);
  }
}

}  // namespace
