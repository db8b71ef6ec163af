#include "files/checkpoint_writer.hpp"

#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::test;

namespace {

using Names = std::vector<std::string>;

Names names_in(const fs::path& directory) {
  Names names;
  for (const auto& entry : fs::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

template <class Action>
std::string file_error(Action action) {
  try {
    action();
  } catch (const FileError& error) {
    return error.what();
  }
  return "";
}

std::int64_t latest_step(const fs::path& root) {
  const auto latest =
      read_latest_checkpoint(root, 0, [](const std::string& warning) { CATCH_FAIL_CHECK(warning); });
  return latest ? step_of(latest->checkpoint) : -1;
}

// Saves as a Trainer does: the checkpoint, then `last`, then retention.
fs::path save_as_last(CheckpointWriter& writer, std::int64_t step, std::int64_t keep) {
  const auto folder = writer.save(small_checkpoint(step));
  writer.name("last", folder);
  writer.retire(keep, "run");
  return folder;
}

// Mounts a small memory disk over a directory; needs the right to mount.
class SmallDisk {
 public:
  explicit SmallDisk(const fs::path& path) : path_(path) {
    fs::create_directory(path);
    mounted_ = ::mount("none", path.c_str(), "tmpfs", 0, "size=128k") == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount(path_.c_str());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  [[nodiscard]] bool mounted() const { return mounted_; }

 private:
  fs::path path_;
  bool mounted_ = false;
};

// Takes the right to pass over permissions from root, which the tests may run as.
class OrdinaryUser {
 public:
  OrdinaryUser() {
    if (before_ == 0 && ::seteuid(65534) != 0) throw std::runtime_error("root could not become another user");
  }
  ~OrdinaryUser() {
    if (before_ == 0 && ::seteuid(0) != 0) std::abort();
  }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  uid_t before_ = ::geteuid();
};

}  // namespace

CATCH_TEST_CASE("A writer creates its directory, and saving leaves one folder and nothing temporary") {
  const TemporaryDirectory directory;
  const auto root = directory.path() / "runs" / "a" / "checkpoints";
  CheckpointWriter writer(root / "");
  CATCH_CHECK(writer.root() == root);
  CATCH_CHECK(list_checkpoints(root).empty());
  const auto folder = writer.save(small_checkpoint(5));
  CATCH_CHECK(folder == root / "step-00000005");
  CATCH_CHECK(names_in(root) == Names{".lock", "step-00000005"});
  CATCH_CHECK(names_in(folder) == Names{"ema.safetensors", "manifest.json", "model.safetensors",
                                        "optimizer.safetensors", "rank-00000.safetensors"});
}

CATCH_TEST_CASE("A file in the place of the checkpoint directory is an error with its path") {
  const TemporaryDirectory directory;
  write_text(directory.path() / "file", "");
  CATCH_CHECK(file_error([&] { CheckpointWriter writer(directory.path() / "file"); })
                  .starts_with("[cannot-create-directory] cannot create the directory " +
                               (directory.path() / "file").string() + ": File exists."));
}

CATCH_TEST_CASE("A directory has one writer at a time") {
  const TemporaryDirectory directory;
  std::optional<CheckpointWriter> first(std::in_place, directory.path());
  CATCH_CHECK(file_error([&] { CheckpointWriter second(directory.path()); }) ==
              "[checkpoint-directory-in-use] another run is saving its checkpoints to " +
                  directory.path().string() +
                  ". Wait for it to end, or give this run a checkpoint_dir of its own.");
  first.reset();
  CATCH_CHECK_NOTHROW(CheckpointWriter(directory.path()));
}

CATCH_TEST_CASE("What dead writers left is removed at the start, what only looks like it is not") {
  const TemporaryDirectory directory, elsewhere;
  write_text(directory.path() / ".lock", "");  // theirs, which is free again
  write_text(elsewhere.path() / "file", "1");
  for (const char* name :
       {".tmp-step-00000007-4711-1", ".tmp-step-00000007-2-4711-1", ".tmp-retired-step-00000006-4711-2"}) {
    fs::create_directory(directory.path() / name);
    write_text(directory.path() / name / "model.safetensors", "half");
    fs::create_directory_symlink(elsewhere.path(), directory.path() / name / "link");
  }
  fs::create_directory_symlink("step-00000006", directory.path() / ".tmp-link-best-4711-3");
  const Names strangers = {".tmp-link-mine-1-1", ".tmp-step-7-1-1", ".tmp-step-00000007-1-1.bak",
                           "tmp-step-00000007-1-1"};
  for (const auto& name : strangers) write_text(directory.path() / name, "");
  CheckpointWriter writer(directory.path());
  Names expected = strangers;
  expected.push_back(".lock");
  std::sort(expected.begin(), expected.end());
  CATCH_CHECK(names_in(directory.path()) == expected);
  CATCH_CHECK(read_text(elsewhere.path() / "file") == "1");
}

CATCH_TEST_CASE("A second writer that is refused leaves the first one's work alone") {
  const TemporaryDirectory directory;
  CheckpointWriter first(directory.path());
  fs::create_directory(directory.path() / ".tmp-step-00000007-1-1");
  CATCH_CHECK(!file_error([&] { CheckpointWriter second(directory.path()); }).empty());
  CATCH_CHECK(fs::exists(directory.path() / ".tmp-step-00000007-1-1"));
}

CATCH_TEST_CASE("With the lock's file removed by hand, a second writer spares what the first is at, and the first stops") {
  const TemporaryDirectory directory;
  CheckpointWriter first(directory.path());
  const auto folder = first.save(small_checkpoint(1));
  fs::create_directory(directory.path() / ".tmp-step-00000002-1-1");
  fs::remove(directory.path() / ".lock");
  CheckpointWriter second(directory.path());
  CATCH_CHECK(fs::exists(directory.path() / ".tmp-step-00000002-1-1"));
  const Names before = names_in(directory.path());
  for (const auto& error : {file_error([&] { first.save(small_checkpoint(2)); }),
                            file_error([&] { first.name("last", folder); }),
                            file_error([&] { first.remove_name("last"); })}) {
    CATCH_CHECK(error.starts_with("[checkpoint-lock-lost] the lock on " + directory.path().string()));
  }
  CATCH_CHECK(names_in(directory.path()) == before);
  CATCH_CHECK_NOTHROW(second.save(small_checkpoint(2)));
}

CATCH_TEST_CASE("A writer whose lock another machine did not see stops when that one takes it") {
  const TemporaryDirectory directory;
  CheckpointWriter first(directory.path());
  for (const std::int64_t step : {1, 2, 3}) first.save(small_checkpoint(step));
  // What a second lock does to the file where the first one does not count.
  fs::last_write_time(directory.path() / ".lock", fs::file_time_type::clock::now() + std::chrono::seconds(1));
  CATCH_CHECK(file_error([&] { first.retire(1, "run"); }).starts_with("[checkpoint-lock-lost]"));
  CATCH_CHECK(names_in(directory.path()) == Names{".lock", "step-00000001", "step-00000002", "step-00000003"});
}

CATCH_TEST_CASE("A writer killed at any time leaves valid checkpoints, and the next one clears up") {
  const TemporaryDirectory directory;
  std::int64_t saved = 0;
  std::int64_t named = 0;  // a save that was killed may be complete and not yet be `last`
  for (int round = 0; round < 25; ++round) {
    int pipe[2];
    CATCH_REQUIRE(::pipe(pipe) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      CheckpointWriter writer(directory.path());
      for (std::int64_t step = saved + 1;; ++step) {
        save_as_last(writer, step, 2);
        if (::write(pipe[1], &step, sizeof step) != sizeof step) ::_exit(1);
      }
    }
    ::close(pipe[1]);
    std::this_thread::sleep_for(std::chrono::microseconds(10'000 + 1'900 * round));
    ::kill(child, SIGKILL);
    int status = 0;
    CATCH_REQUIRE(::waitpid(child, &status, 0) == child);
    CATCH_REQUIRE(WIFSIGNALED(status));
    for (std::int64_t step = 0; ::read(pipe[0], &step, sizeof step) == sizeof step;) saved = named = step;
    ::close(pipe[0]);

    CheckpointWriter writer(directory.path());
    // The save that was going on may have been completed without being told.
    const auto newest = latest_step(directory.path());
    if (saved > 0) {
      CATCH_CHECK(newest >= saved);
      CATCH_CHECK(newest <= saved + 1);
      if (named > 0) CATCH_CHECK(step_of(read_checkpoint(directory.path() / "last")) >= named);
      saved = newest;
    }
    for (const auto& name : names_in(directory.path())) CATCH_CHECK(!name.starts_with(".tmp"));
    for (const auto& entry : list_checkpoints(directory.path()))
      CATCH_CHECK_NOTHROW(read_checkpoint(entry.directory));
  }
  CATCH_CHECK(saved > 0);
}

CATCH_TEST_CASE("A state saved again at the same step gets a folder of its own") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  CATCH_CHECK(writer.save(small_checkpoint(5, 1)).filename() == "step-00000005");
  CATCH_CHECK(writer.save(small_checkpoint(5, 2)).filename() == "step-00000005-2");
  CATCH_CHECK(writer.save(small_checkpoint(5, 3)).filename() == "step-00000005-3");
  CATCH_CHECK(list_checkpoints(directory.path()).at(0).directory.filename() == "step-00000005-3");
}

CATCH_TEST_CASE(
    "A name is a relative link that is replaced, survives moving the directory, and can be removed") {
  const TemporaryDirectory directory;
  {
    CheckpointWriter writer(directory.path() / "a");
    writer.name("best", writer.save(small_checkpoint(1)));
    writer.name("best", writer.save(small_checkpoint(2)));
    writer.name("last", directory.path() / "a" / "step-00000002");
    CATCH_CHECK(fs::read_symlink(directory.path() / "a" / "best") == "step-00000002");
    writer.remove_name("last");
    writer.remove_name("final");
    CATCH_CHECK(names_in(directory.path() / "a") == Names{".lock", "best", "step-00000001", "step-00000002"});
  }
  fs::rename(directory.path() / "a", directory.path() / "b");
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "b" / "best")) == 2);
}

CATCH_TEST_CASE("A folder that somebody else called like a name is left alone") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  const auto folder = writer.save(small_checkpoint(1));
  fs::create_directory(directory.path() / "best");
  write_text(directory.path() / "best" / "notes", "1");
  writer.remove_name("best");
  CATCH_CHECK(file_error([&] { writer.name("best", folder); }).starts_with("[cannot-write-file]"));
  CATCH_CHECK(names_in(directory.path()) == Names{".lock", "best", "step-00000001"});
  CATCH_CHECK(read_text(directory.path() / "best" / "notes") == "1");
}

CATCH_TEST_CASE("T-31: the only checkpoint stays until the next one is complete (RLIMIT_FSIZE)") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  save_as_last(writer, 1, 1);
  {
    const FileSizeLimit limit(100);
    CATCH_CHECK(!file_error([&] { save_as_last(writer, 2, 1); }).empty());
  }
  CATCH_CHECK(latest_step(directory.path()) == 1);
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "last")) == 1);
  save_as_last(writer, 2, 1);
  CATCH_CHECK(names_in(directory.path()) == Names{".lock", "last", "step-00000002"});
}

CATCH_TEST_CASE("T-34: the best and the newest are both kept") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  for (const std::int64_t step : {10, 20, 30, 40}) {
    const auto folder = writer.save(small_checkpoint(step));
    writer.name("last", folder);
    if (step == 10) writer.name("best", folder);
    writer.retire(2, "run");
  }
  CATCH_CHECK(names_in(directory.path()) ==
              Names{".lock", "best", "last", "step-00000010", "step-00000030", "step-00000040"});
  CATCH_CHECK(latest_step(directory.path()) == 40);
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "best")) == 10);
}

CATCH_TEST_CASE("T-35: keeping one, or none, keeps the newest at any time") {
  for (const int keep : {0, 1}) {
    const TemporaryDirectory directory;
    CheckpointWriter writer(directory.path());
    for (const std::int64_t step : {1, 2, 3}) {
      writer.save(small_checkpoint(step));
      writer.retire(keep, "run");
      CATCH_CHECK(latest_step(directory.path()) == step);
      CATCH_CHECK(names_in(directory.path()).size() == 2);
    }
  }
}

CATCH_TEST_CASE("T-35: retiring in a new process keeps the newest that is valid") {
  const TemporaryDirectory directory;
  for (const std::int64_t step : {1, 2, 3}) CheckpointWriter(directory.path()).save(small_checkpoint(step));
  write_text(directory.path() / "step-00000003" / "model.safetensors", "damaged");
  CheckpointWriter(directory.path()).retire(1, "run");
  CATCH_CHECK(names_in(directory.path()) == Names{".lock", "step-00000002", "step-00000003"});
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "step-00000002")) == 2);
}

CATCH_TEST_CASE("T-37: order does not depend on digits or times") {
  for (const std::vector<std::int64_t>& steps : {std::vector<std::int64_t>{8, 9, 10, 11},
                                                 {98, 99, 100, 101},
                                                 {99'999'998, 99'999'999, 100'000'000, 100'000'001}}) {
    for (const int direction : {1, 0, -1}) {
      const TemporaryDirectory directory;
      CheckpointWriter writer(directory.path());
      for (const auto step : steps) writer.save(small_checkpoint(step));
      int position = 0;
      for (const auto& entry : list_checkpoints(directory.path())) {
        fs::last_write_time(entry.directory,
                            fs::file_time_type() + std::chrono::hours(direction * position++));
      }
      writer.retire(2, "run");
      const auto kept = list_checkpoints(directory.path());
      CATCH_REQUIRE(kept.size() == 2);
      CATCH_CHECK(kept[0].step == steps[3]);
      CATCH_CHECK(kept[1].step == steps[2]);
    }
  }
}

CATCH_TEST_CASE("T-38: another run's newer checkpoints neither count nor go") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  for (const std::int64_t step : {500, 600, 700}) writer.save(small_checkpoint(step, 0, "another run"));
  writer.save(small_checkpoint(100));
  writer.retire(3, "run");
  CATCH_CHECK(list_checkpoints(directory.path()).size() == 4);
  for (const std::int64_t step : {101, 102, 103}) {
    writer.save(small_checkpoint(step));
    writer.retire(3, "run");
  }
  CATCH_CHECK(names_in(directory.path()) == Names{".lock", "step-00000101", "step-00000102", "step-00000103",
                                                  "step-00000500", "step-00000600", "step-00000700"});
}

CATCH_TEST_CASE("T-38: what was just saved stays, also behind an abandoned future of the same run") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  for (const std::int64_t step : {500, 600, 700}) writer.save(small_checkpoint(step));
  const auto folder = writer.save(small_checkpoint(100));
  writer.retire(2, "run");
  CATCH_CHECK(step_of(read_checkpoint(folder)) == 100);
}

CATCH_TEST_CASE("Retention leaves folders with a stranger's file and unreadable ones") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  for (const std::int64_t step : {1, 2, 3, 4}) writer.save(small_checkpoint(step));
  write_text(directory.path() / "step-00000001" / "notes.txt", "mine");
  write_text(directory.path() / "step-00000002" / "manifest.json", "{}");
  writer.retire(1, "run");
  CATCH_CHECK(names_in(directory.path()) ==
              Names{".lock", "step-00000001", "step-00000002", "step-00000004"});
}

CATCH_TEST_CASE("What others do to a folder that a writer knows is seen before the folder goes") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  for (const std::int64_t step : {1, 2, 3, 4, 5}) save_as_last(writer, step, 5);
  write_text(directory.path() / "step-00000001" / "manifest.json", "{}");
  write_text(directory.path() / "step-00000002" / "notes.txt", "mine");
  {
    const TemporaryDirectory elsewhere;
    const auto foreign = CheckpointWriter(elsewhere.path()).save(small_checkpoint(3, 0, "another"));
    fs::copy(foreign, directory.path() / "step-00000003", fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  fs::remove_all(directory.path() / "step-00000004");
  save_as_last(writer, 6, 1);
  CATCH_CHECK(names_in(directory.path()) ==
              Names{".lock", "last", "step-00000001", "step-00000002", "step-00000003", "step-00000006"});
}

CATCH_TEST_CASE(
    "A save that fails after any number of bytes leaves older checkpoints and names (RLIMIT_FSIZE)") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  save_as_last(writer, 1, 5);
  const Names before = names_in(directory.path());
  const auto largest = fs::file_size(directory.path() / "step-00000001" / "manifest.json");
  for (std::uint64_t bytes = 0; bytes < largest; bytes += 7) {
    const FileSizeLimit limit(bytes);
    CATCH_CHECK(file_error([&] { writer.save(small_checkpoint(2)); }).starts_with("[cannot-write-file]"));
    CATCH_CHECK(names_in(directory.path()) == before);
  }
  CATCH_CHECK(latest_step(directory.path()) == 1);
  CATCH_CHECK_NOTHROW(save_as_last(writer, 2, 5));
}

CATCH_TEST_CASE("A full disk is named and leaves older checkpoints and names (tmpfs)") {
  const TemporaryDirectory directory;
  const SmallDisk disk(directory.path() / "disk");
  if (!disk.mounted()) {
    CATCH_WARN(
        "No tmpfs may be mounted here, so that no disk is filled; RLIMIT_FSIZE cuts the same writes short.");
    return;
  }
  const auto root = directory.path() / "disk" / "checkpoints";
  CheckpointWriter writer(root);
  save_as_last(writer, 1, 5);
  const Names before = names_in(root);
  auto large = small_checkpoint(2);
  large.optimizer = {{"w/exp_avg", torch::zeros({50'000})}};
  const std::string error = file_error([&] { writer.save(large); });
  CATCH_CHECK(error.find("optimizer.safetensors: No space left on device. Free some space") !=
              std::string::npos);
  CATCH_CHECK(names_in(root) == before);
  CATCH_CHECK(step_of(read_checkpoint(root / "last")) == 1);
  CATCH_CHECK_NOTHROW(save_as_last(writer, 2, 5));
}

CATCH_TEST_CASE(
    "A directory that became read-only is named and keeps its checkpoints (permissions, not as root)") {
  const TemporaryDirectory directory;
  fs::permissions(directory.path(), fs::perms::all);
  const OrdinaryUser ordinary_user;
  const auto root = directory.path() / "checkpoints";
  CheckpointWriter writer(root);
  const auto folder = writer.save(small_checkpoint(1));
  const Names before = names_in(root);
  fs::permissions(root, fs::perms::owner_read | fs::perms::owner_exec);
  CATCH_CHECK(file_error([&] {
                writer.save(small_checkpoint(2));
              }).find("Permission denied. Choose a directory that this user may write to") !=
              std::string::npos);
  CATCH_CHECK(file_error([&] { writer.name("last", folder); }).starts_with("[cannot-write-file]"));
  CATCH_CHECK(names_in(root) == before);
  CATCH_CHECK(latest_step(root) == 1);
  fs::permissions(root, fs::perms::owner_all);
  CATCH_CHECK_NOTHROW(writer.save(small_checkpoint(2)));
}
