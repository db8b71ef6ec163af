#include "lockstep/files/checkpoint_folder.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>

#include "files/checkpoint_writer.hpp"
#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"
#include "support/throws.hpp"

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::test;

namespace {

std::vector<std::string> left_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

CATCH_TEST_CASE("A listed checkpoint has its epoch, its size, and the names that lead to it") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  auto given = small_checkpoint(7);
  given.manifest["state"]["epoch"] = 3;
  const auto folder = writer.save(given);
  writer.name("last", folder);
  writer.name("best", folder);
  const auto entries = list_checkpoints(directory.path());
  CATCH_REQUIRE(entries.size() == 1);
  CATCH_CHECK(entries[0].epoch == 3);
  CATCH_CHECK(entries[0].names == std::vector<std::string>{"last", "best"});
  std::uint64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(folder)) {
    if (file.path().extension() == ".safetensors") bytes += fs::file_size(file);
  }
  CATCH_CHECK(entries[0].bytes == bytes);
  const auto& files = entries[0].files;
  CATCH_CHECK(std::find(files.begin(), files.end(), "model.safetensors") != files.end());
  CATCH_CHECK(files.size() + 1 == left_in(folder).size());
  CATCH_CHECK(entries[0].readable());

  fs::remove(folder / "manifest.json");
  const auto unreadable = list_checkpoints(directory.path()).at(0);
  CATCH_CHECK(!unreadable.readable());
  CATCH_CHECK(unreadable.problem.find("manifest.json is damaged: it is missing") != std::string::npos);
}

CATCH_TEST_CASE("Verifying names the file and the tensor that changed") {
  const TemporaryDirectory directory;
  auto given = small_checkpoint(7);
  given.optimizer.emplace_back("w/exp_avg_sq", torch::zeros(4));
  const auto folder = CheckpointWriter(directory.path()).save(given);
  CATCH_CHECK_NOTHROW(verify_checkpoint(folder));
  const auto path = folder / "optimizer.safetensors";
  write_byte(path, fs::file_size(path) - 1, 1);
  std::string text;
  try {
    verify_checkpoint(folder);
  } catch (const CheckpointError& error) {
    text = error.what();
  }
  CATCH_CHECK(text.starts_with("[damaged-checkpoint] " + path.string() +
                               " is damaged: the checksum of tensor \"w/exp_avg_sq\" differs"));
}

CATCH_TEST_CASE("Pruning keeps the newest of each run and is announced without being done") {
  const TemporaryDirectory directory;
  {
    CheckpointWriter writer(directory.path());
    for (const std::int64_t step : {1, 2, 3}) writer.save(small_checkpoint(step));
    for (const std::int64_t step : {4, 5}) writer.save(small_checkpoint(step, 0, "another"));
    writer.name("best", directory.path() / "step-00000001");
    fs::create_directory(directory.path() / ".tmp-step-00000009-4711-1");
  }
  const std::vector<fs::path> expected = {directory.path() / "step-00000004", directory.path() / "step-00000002"};
  const auto before = left_in(directory.path());
  CATCH_CHECK(superfluous_checkpoints(directory.path(), 1) == expected);
  CATCH_CHECK(left_in(directory.path()) == before);
  CATCH_CHECK(prune_checkpoints(directory.path(), 1) == expected);
  CATCH_CHECK(left_in(directory.path()) ==
              std::vector<std::string>{".lock", "best", "step-00000001", "step-00000003", "step-00000005"});
}

CATCH_TEST_CASE("Pruning spares what any name leads to, wherever it stands, and a name that leads nowhere spares nothing") {
  for (const char* name : {"last", "best", "final"}) {
    const TemporaryDirectory directory;
    {
      CheckpointWriter writer(directory.path());
      for (const std::int64_t step : {1, 2, 3}) writer.save(small_checkpoint(step));
      writer.name(name, directory.path() / "step-00000001");
    }
    fs::create_directory_symlink("step-00000002", directory.path() / "mine");
    CATCH_CHECK(prune_checkpoints(directory.path(), 1) == std::vector<fs::path>{directory.path() / "step-00000002"});
    fs::remove(directory.path() / name);
    fs::create_directory_symlink("../elsewhere/step-00000001", directory.path() / name);
    CATCH_CHECK(prune_checkpoints(directory.path(), 1) == std::vector<fs::path>{directory.path() / "step-00000001"});
  }
}

CATCH_TEST_CASE("Pruning refuses a folder in use and one that is not there") {
  const TemporaryDirectory directory;
  const CheckpointWriter writer(directory.path());
  CATCH_CHECK(thrown_id<FileError>([&] { prune_checkpoints(directory.path(), 1); }) == "checkpoint-directory-in-use");
  const auto absent = directory.path() / "absent";
  CATCH_CHECK(thrown_id<CheckpointError>([&] { prune_checkpoints(absent, 1); }) == "checkpoint-not-found");
  CATCH_CHECK(thrown_id<CheckpointError>([&] { (void)superfluous_checkpoints(absent, 1); }) == "checkpoint-not-found");
  CATCH_CHECK(!fs::exists(absent));
}
