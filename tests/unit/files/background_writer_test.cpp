#include "files/background_writer.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <string>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/held_tensor.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::test;

namespace {

std::map<std::string, std::string> files_in(const fs::path& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) files[entry.path().filename()] = read_text(entry.path());
  return files;
}

/// A state whose save ends when `gate` lets it.
SaveJob gated(std::int64_t step, Gate& gate) {
  SaveJob job{.checkpoint = small_checkpoint(step), .names = {"last"}, .run_id = "run"};
  job.checkpoint.registered = {{"gate", gate.tensor()}};
  return job;
}

std::string id_of(const std::exception_ptr& failure) {
  if (!failure) return "";
  try {
    std::rethrow_exception(failure);
  } catch (const FileError& error) {
    return error.id();
  }
}

std::atomic<bool> handled = false;

}  // namespace

CATCH_TEST_CASE("a save in the background makes the files of one that is not") {
  const TemporaryDirectory directory;
  const SaveJob job{.checkpoint = small_checkpoint(7), .names = {"last", "best"}, .run_id = "run"};
  CheckpointWriter at_once(directory.path() / "at-once");
  const auto expected = run(at_once, job);
  CheckpointWriter writer(directory.path() / "later");
  BackgroundWriter background(writer);
  background.start(job);
  background.wait();
  CATCH_CHECK(id_of(background.take_failure()).empty());
  CATCH_CHECK(files_in(directory.path() / "later" / "step-00000007") == files_in(expected));
  CATCH_CHECK(fs::read_symlink(directory.path() / "later" / "last") == "step-00000007");
  CATCH_CHECK(fs::read_symlink(directory.path() / "later" / "best") == "step-00000007");
}

CATCH_TEST_CASE("tensors may change as soon as a save has begun") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  BackgroundWriter background(writer);
  auto job = SaveJob{.checkpoint = small_checkpoint(7)};
  const auto weight = job.checkpoint.model.at(0).second;
  background.start(std::move(job));
  weight.zero_();
  background.wait();
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "step-00000007")) == 7);
}

CATCH_TEST_CASE("one save is under way at a time, and the next one waits for it") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  BackgroundWriter background(writer);
  CATCH_CHECK_FALSE(background.busy());
  Gate gate;
  gate.shut();
  background.start(gated(1, gate));
  gate.wait_for(1);
  CATCH_CHECK(background.busy());
  std::atomic<bool> second_began = false;
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CATCH_CHECK_FALSE(second_began);
    gate.open();
  });
  background.start(gated(2, gate));
  second_began = true;
  opener.join();
  background.wait();
  CATCH_CHECK_FALSE(background.busy());
  CATCH_CHECK(fs::read_symlink(directory.path() / "last") == "step-00000002");
}

CATCH_TEST_CASE("what a save throws is told once, and neither older checkpoints nor later saves suffer") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  BackgroundWriter background(writer);
  Gate gate;
  background.start(gated(1, gate));
  background.wait();
  {
    const FileSizeLimit limit(100);
    background.start(gated(2, gate));
    background.wait();
  }
  CATCH_CHECK(id_of(background.take_failure()) == "cannot-write-file");
  CATCH_CHECK(id_of(background.take_failure()).empty());
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "last")) == 1);
  CATCH_CHECK(list_checkpoints(directory.path()).size() == 1);
  background.start(gated(3, gate));
  background.wait();
  CATCH_CHECK(id_of(background.take_failure()).empty());
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "last")) == 3);
}

CATCH_TEST_CASE("a writer that goes finishes its save first") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  Gate gate;
  { BackgroundWriter(writer).start(gated(4, gate)); }
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "last")) == 4);
}

CATCH_TEST_CASE("older checkpoints are retired after the new one is saved") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  BackgroundWriter background(writer);
  for (std::int64_t step = 1; step <= 3; ++step) {
    background.start({.checkpoint = small_checkpoint(step), .names = {"last"}, .keep = 1, .run_id = "run"});
  }
  background.wait();
  CATCH_CHECK(list_checkpoints(directory.path()).size() == 1);
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "last")) == 3);
}

CATCH_TEST_CASE("the writing thread takes no signals") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  BackgroundWriter background(writer);
  Gate gate;
  gate.shut();
  background.start(gated(1, gate));
  gate.wait_for(1);

  handled = false;
  const auto former = ::signal(SIGUSR1, [](int) { handled = true; });
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &one, nullptr);
  ::kill(::getpid(), SIGUSR1);
  gate.open();
  background.wait();
  sigset_t pending;
  ::sigpending(&pending);
  CATCH_CHECK(::sigismember(&pending, SIGUSR1) == 1);
  CATCH_CHECK_FALSE(handled);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  CATCH_CHECK(handled);
  ::signal(SIGUSR1, former);
}
