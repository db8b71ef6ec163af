#include "files/checkpoint.hpp"

#include <sys/stat.h>
#include <torch/torch.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "files/checkpoint_layout.hpp"
#include "files/checkpoint_writer.hpp"
#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::test;

namespace {

// The text of the CheckpointError that `action` throws, "" if it throws nothing.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

fs::path saved(const fs::path& root, std::int64_t step, std::int64_t save_index = 0) {
  return CheckpointWriter(root).save(small_checkpoint(step, save_index));
}

// Changes the manifest of a step folder and gives it a checksum that fits.
template <class Change>
void rewrite_manifest(const fs::path& folder, Change change) {
  auto manifest = read_manifest(folder);
  change(manifest);
  write_text(folder / "manifest.json", manifest_text(manifest));
}

std::vector<std::string> names_of(const std::vector<CheckpointEntry>& entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.push_back(entry.directory.filename());
  return names;
}

}  // namespace

CATCH_TEST_CASE("A checkpoint comes back as it was saved") {
  const TemporaryDirectory directory;
  const auto folder = saved(directory.path(), 3, 7);
  CATCH_CHECK(folder == directory.path() / "step-00000003");
  const auto checkpoint = read_checkpoint(folder);
  CATCH_CHECK(checkpoint.model.at(0).first == "w");
  CATCH_CHECK(at::equal(checkpoint.model.at(0).second, torch::tensor({3.f, 3.f, 3.f})));
  CATCH_CHECK(at::equal(checkpoint.ema.at(0).second, torch::tensor({1.5f, 1.5f, 1.5f})));
  CATCH_CHECK(checkpoint.optimizer.at(0).first == "w/exp_avg");
  CATCH_CHECK(at::equal(checkpoint.optimizer.at(0).second, torch::tensor({6.f, 6.f, 6.f})));
  CATCH_CHECK(at::equal(checkpoint.rank.at(0).second, torch::tensor({0, 1, 2, 3}, torch::kByte)));
  CATCH_CHECK(checkpoint.manifest["run_id"] == "run");
  CATCH_CHECK(checkpoint.manifest["save_index"] == 7);
  CATCH_CHECK(checkpoint.manifest["state"] ==
              nlohmann::json{{"step", 3}, {"batches", 6}, {"best_metric", nullptr}});
  CATCH_CHECK(checkpoint.manifest["format_version"] == 1);
  CATCH_CHECK(checkpoint.manifest["files"].size() == 4);
  CATCH_CHECK(!checkpoint.manifest.contains("manifest_crc32c"));
}

CATCH_TEST_CASE("A checkpoint without averages and optimizer has no files for them") {
  const TemporaryDirectory directory;
  auto given = small_checkpoint(1);
  given.ema.clear();
  given.optimizer.clear();
  const auto folder = CheckpointWriter(directory.path()).save(given);
  CATCH_CHECK(!fs::exists(folder / "ema.safetensors"));
  CATCH_CHECK(!fs::exists(folder / "optimizer.safetensors"));
  const auto checkpoint = read_checkpoint(folder);
  CATCH_CHECK(checkpoint.ema.empty());
  CATCH_CHECK(checkpoint.optimizer.empty());
  CATCH_CHECK(step_of(checkpoint) == 1);
}

CATCH_TEST_CASE("A rank that has no file gets no tensors of its own") {
  const TemporaryDirectory directory;
  const auto folder = saved(directory.path(), 1);
  CATCH_CHECK(read_checkpoint(folder, 1).rank.empty());
  CATCH_CHECK(read_checkpoint(folder, 0).rank.size() == 1);
}

CATCH_TEST_CASE("A checkpoint written by hand is read, its checksums taken from another implementation") {
  const TemporaryDirectory directory;
  const auto folder = directory.path() / "step-00000002";
  fs::create_directory(folder);
  write_text(folder / "model.safetensors",
             std::string("\x38\0\0\0\0\0\0\0", 8) +
                 "{\"w\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}   " + "\x05\x09");
  write_text(folder / "manifest.json",
             "{\"files\": {\"model.safetensors\": {\"size\": 66, \"crc32c\": \"2ff1b284\"}}, "
             "\"format_version\": 1,\n"
             "\"run_id\": \"by hand\", \"save_index\": 0, \"state\": {\"step\": 2, \"batches\": 4},\n"
             "\"note\": 0.1,\n  \"manifest_crc32c\": \"95d4b0de\"\n}\n");
  const auto checkpoint = read_checkpoint(folder);
  CATCH_CHECK(at::equal(checkpoint.model.at(0).second, torch::tensor({5, 9}, torch::kByte)));
  CATCH_CHECK(checkpoint.manifest["note"] == 0.1);
}

CATCH_TEST_CASE("A text that is not UTF-8 does not cost the checkpoint") {
  const TemporaryDirectory directory;
  auto given = small_checkpoint(1);
  given.manifest["reason"] = "a\xff";
  const auto folder = CheckpointWriter(directory.path()).save(given);
  CATCH_CHECK(read_checkpoint(folder).manifest["reason"] == "a\xef\xbf\xbd");
}

CATCH_TEST_CASE("A checkpoint is found by its folder, with a slash behind it, and by a name") {
  const TemporaryDirectory directory;
  CheckpointWriter writer(directory.path());
  const auto folder = writer.save(small_checkpoint(3));
  writer.name("best", folder);
  CATCH_CHECK(step_of(read_checkpoint(folder)) == 3);
  CATCH_CHECK(step_of(read_checkpoint(folder / "")) == 3);
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "best")) == 3);
  CATCH_CHECK(step_of(read_checkpoint(directory.path() / "best" / "")) == 3);
  const TemporaryDirectory elsewhere;
  fs::copy(folder, elsewhere.path() / "my-favourite");
  CATCH_CHECK(step_of(read_checkpoint(elsewhere.path() / "my-favourite")) == 3);
}

CATCH_TEST_CASE("A path without a checkpoint is an error that says what is there") {
  const TemporaryDirectory directory;
  const auto folder = saved(directory.path(), 3);
  CheckpointWriter(directory.path()).name("last", folder);
  write_text(directory.path() / "file", "");
  fs::create_directory_symlink("step-00000009", directory.path() / "final");
  const std::string root = directory.path();
  const auto error = [&](const std::string& name) {
    return error_of([&] { read_checkpoint(directory.path() / name); });
  };
  const std::string present = "Present are: last, final, step-00000003.";
  CATCH_CHECK(error("best") == "[checkpoint-not-found] no checkpoint at " + root +
                                   "/best: there is nothing of that name. " + present);
  CATCH_CHECK(error("file") == "[checkpoint-not-found] no checkpoint at " + root +
                                   "/file: it is a file, not a folder; weights from a file are loaded with load_weights(). " +
                                       present);
  CATCH_CHECK(error("") == "[checkpoint-not-found] no checkpoint at " + root +
                               "/: it is a folder without a manifest.json. " + present);
  CATCH_CHECK(error("final") == "[checkpoint-not-found] no checkpoint at " + root +
                                    "/final: it leads to step-00000009, which is no folder beside it. " +
                                    present);
  CATCH_CHECK(contains(error("no/best"), "There is none beside it either; check the path."));
}

CATCH_TEST_CASE("A name that leads anywhere but to a step folder beside it is refused") {
  const TemporaryDirectory directory, elsewhere;
  const auto outside = saved(elsewhere.path(), 1);
  saved(directory.path(), 2);
  const auto link = directory.path() / "best";
  for (const std::string& target :
       {outside.string(), "../" + elsewhere.path().filename().string() + "/step-00000001",
        std::string("./step-00000002"), std::string("."), std::string("..")}) {
    fs::remove(link);
    fs::create_directory_symlink(target, link);
    CATCH_INFO(target);
    CATCH_CHECK(contains(error_of([&] { read_checkpoint(link); }), "instead of a step folder beside it"));
  }
  fs::create_directory_symlink(outside, directory.path() / "step-00000005");
  fs::remove(link);
  fs::create_directory_symlink("step-00000005", link);
  CATCH_CHECK(error_of([&] { read_checkpoint(link); }).starts_with("[checkpoint-not-found]"));
  CATCH_CHECK(names_of(list_checkpoints(directory.path())) == std::vector<std::string>{"step-00000002"});
}

CATCH_TEST_CASE("A flipped bit anywhere in a checkpoint is found, and the file is named") {
  const TemporaryDirectory directory;
  const auto folder = saved(directory.path(), 1);
  for (const char* name : {"manifest.json", "model.safetensors", "ema.safetensors", "optimizer.safetensors",
                           "rank-00000.safetensors"}) {
    const std::string whole = read_text(folder / name);
    CATCH_REQUIRE(whole.size() > 50);
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      const std::size_t byte = bit / 8;
      write_byte(folder / name, byte, static_cast<char>(whole[byte] ^ (1 << bit % 8)));
      const std::string error = error_of([&] { verify_checkpoint(folder); });
      if (!error.starts_with("[damaged-checkpoint] " + (folder / name).string() + " is damaged")) {
        CATCH_FAIL_CHECK(name << ", bit " << bit << ": " << error);
      }
      write_byte(folder / name, byte, whole[byte]);
    }
  }
  CATCH_CHECK(step_of(read_checkpoint(folder)) == 1);
}

CATCH_TEST_CASE("A checkpoint with a file cut at any byte, grown, missing or exchanged is refused") {
  const TemporaryDirectory directory;
  const auto folder = saved(directory.path(), 1);
  for (const char* name : {"manifest.json", "model.safetensors", "rank-00000.safetensors"}) {
    const std::string whole = read_text(folder / name);
    for (std::size_t size = whole.size(); size-- > 0;) {
      fs::resize_file(folder / name, size);
      if (!error_of([&] { read_checkpoint(folder); }).starts_with("[damaged-checkpoint]")) {
        CATCH_FAIL_CHECK(name << " cut after " << size << " bytes");
      }
    }
    write_text(folder / name, whole + " ");
    CATCH_CHECK(error_of([&] { read_checkpoint(folder); }).starts_with("[damaged-checkpoint]"));
    fs::remove(folder / name);
    CATCH_CHECK(contains(error_of([&] { read_checkpoint(folder); }),
                         std::string(name) + " is damaged: it is missing"));
    write_text(folder / name, whole);
  }
  const std::string model = read_text(folder / "model.safetensors");
  write_text(folder / "model.safetensors", read_text(folder / "ema.safetensors"));
  CATCH_CHECK(contains(error_of([&] { read_checkpoint(folder); }), "the checksum of tensor \"w\" differs"));
}

CATCH_TEST_CASE("Inside a checkpoint no link, pipe or folder is read in a file's place") {
  const TemporaryDirectory directory;
  for (const char* name : {"manifest.json", "model.safetensors"}) {
    const auto folder = saved(directory.path(), 1);
    const auto error = [&] { return error_of([&] { read_checkpoint(folder); }); };
    fs::rename(folder / name, directory.path() / "moved");
    fs::create_symlink("../moved", folder / name);
    CATCH_CHECK(contains(error(), std::string(name) + " is damaged: it is a symbolic link"));
    fs::remove(folder / name);
    CATCH_REQUIRE(::mkfifo((folder / name).c_str(), 0600) == 0);
    CATCH_CHECK(contains(error(), std::string(name) + " is damaged: it is not a regular file"));
    fs::remove(folder / name);
    fs::create_directory(folder / name);
    CATCH_CHECK(contains(error(), std::string(name) + " is damaged: it is not a regular file"));
  }
}

CATCH_TEST_CASE("A hostile manifest is refused though its checksum fits") {
  const TemporaryDirectory directory;
  const auto folder = saved(directory.path(), 1);
  const std::string whole = read_text(folder / "manifest.json");
  const nlohmann::json digest = {{"size", 1}, {"crc32c", "00000000"}};
  nlohmann::json deep = 1;
  for (int i = 0; i < 200; ++i) deep = nlohmann::json::array({std::move(deep)});
  struct Case {
    std::function<void(nlohmann::json&)> change;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {[&](auto& m) { m["files"]["../outside"] = digest; }, "a file that no checkpoint has, \"../outside\""},
      {[&](auto& m) { m["files"]["/etc/passwd"] = digest; }, "a file that no checkpoint has"},
      {[&](auto& m) { m["files"]["rank-00000.safetensors/../x"] = digest; }, "a file that no checkpoint has"},
      {[&](auto& m) { m["files"]["notes.txt"] = digest; }, "a file that no checkpoint has"},
      {[&](auto& m) { m["files"].erase("model.safetensors"); }, "lists no model.safetensors"},
      {[&](auto& m) { m["files"] = 3; }, "lists no model.safetensors"},
      {[&](auto& m) { m["files"]["ema.safetensors"] = 3; }, "no size and crc32c for ema.safetensors"},
      {[&](auto& m) { m["files"]["ema.safetensors"]["size"] = -1; }, "no size and crc32c"},
      {[&](auto& m) { m["files"]["ema.safetensors"]["crc32c"] = "xyz"; }, "no size and crc32c"},
      {[&](auto& m) { m["files"]["ema.safetensors"]["size"] = 1; }, "bytes instead of 1"},
      {[&](auto& m) { m.erase("run_id"); }, "no run_id"},
      {[&](auto& m) { m["save_index"] = "1"; }, "no save_index"},
      {[&](auto& m) { m["state"] = 1; }, "no state with step and batches"},
      {[&](auto& m) { m["state"]["step"] = -1; }, "no state with step and batches"},
      {[&](auto& m) { m["state"]["batches"] = 1e300; }, "no state with step and batches"},
      {[&](auto& m) { m["state"]["batches"] = std::uint64_t{1} << 63; }, "no state with step and batches"},
      {[&](auto& m) { m.erase("format_version"); }, "no format_version"},
      {[&](auto& m) { m["metadata"] = deep; }, "nested too deep"},
      {[&](auto& m) { m = nlohmann::json::array({1}); }, "no JSON object"},
  };
  for (const auto& [change, expected] : cases) {
    rewrite_manifest(folder, change);
    const std::string error = error_of([&] { read_checkpoint(folder); });
    CATCH_INFO("expected: " << expected << "\nfound: " << error);
    CATCH_CHECK(error.starts_with("[damaged-checkpoint] " + (folder / "manifest.json").string()) !=
                contains(expected, "bytes instead"));
    CATCH_CHECK(contains(error, expected));
    write_text(folder / "manifest.json", whole);
  }
}

CATCH_TEST_CASE("A checkpoint of another format version is refused by that name") {
  const TemporaryDirectory directory;
  const auto folder = saved(directory.path(), 1);
  rewrite_manifest(folder, [](auto& manifest) { manifest["format_version"] = 2; });
  CATCH_CHECK(
      error_of([&] { read_checkpoint(folder); }) ==
      "[checkpoint-format-version] " + (folder / "manifest.json").string() +
          " has format version 2, this library reads version 1. Use the version of lockstep that wrote it.");
}

CATCH_TEST_CASE("A listed file that is no safetensors file is damage, though its checksum fits") {
  const TemporaryDirectory directory;
  const auto folder = saved(directory.path(), 1);
  write_text(folder / "model.safetensors", "123456789");
  rewrite_manifest(folder, [](auto& manifest) {
    manifest["files"]["model.safetensors"] = {{"size", 9}, {"crc32c", "e3069283"}};
  });
  CATCH_CHECK(contains(error_of([&] { read_checkpoint(folder); }),
                       "model.safetensors is damaged: its header length"));
}

CATCH_TEST_CASE(
    "Checkpoints are listed newest first by their manifests, unreadable ones last, strangers not at all") {
  const TemporaryDirectory directory;
  CATCH_CHECK(list_checkpoints(directory.path() / "absent").empty());
  CheckpointWriter writer(directory.path());
  for (const std::int64_t step : {8, 9, 10, 100'000'000}) writer.save(small_checkpoint(step, step));
  auto later = small_checkpoint(9, 20);
  later.manifest["state"]["batches"] = 99;
  writer.save(later);
  writer.save(small_checkpoint(9, 21));
  for (const char* stranger :
       {"step-9", "step-00000009.bak", "my-step-00000009", "old", ".tmp-step-00000009-1-1"}) {
    fs::create_directory(directory.path() / stranger);
  }
  write_text(directory.path() / "step-00000077", "a file");
  fs::create_directory(directory.path() / "step-00000500");
  const auto entries = list_checkpoints(directory.path());
  CATCH_CHECK(names_of(entries) ==
              std::vector<std::string>{"step-100000000", "step-00000010", "step-00000009-2",
                                       "step-00000009-3", "step-00000009", "step-00000008", "step-00000500"});
  CATCH_CHECK(entries[2].batches == 99);
  CATCH_CHECK(entries[3].save_index == 21);
  CATCH_CHECK(entries[0].run_id == "run");
  CATCH_CHECK(entries[5].readable());
  CATCH_CHECK(!entries[6].readable());
}

CATCH_TEST_CASE("The latest checkpoint is the newest that verifies, and each one passed over is reported") {
  const TemporaryDirectory directory;
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& text) { warnings.push_back(text); };
  CATCH_CHECK(!read_latest_checkpoint(directory.path() / "absent", 0, warn));
  CATCH_CHECK(!read_latest_checkpoint(directory.path(), 0, warn));

  for (const std::int64_t step : {1, 2, 3, 4}) saved(directory.path(), step);
  const auto newest = read_latest_checkpoint(directory.path(), 0, warn);
  CATCH_REQUIRE(newest);
  CATCH_CHECK(newest->directory == directory.path() / "step-00000004");
  CATCH_CHECK(step_of(newest->checkpoint) == 4);
  CATCH_CHECK(warnings.empty());

  const auto model = directory.path() / "step-00000004" / "model.safetensors";
  write_text(model, read_text(model) + "x");
  fs::remove(directory.path() / "step-00000003" / "manifest.json");
  CATCH_CHECK(step_of(read_latest_checkpoint(directory.path(), 0, warn)->checkpoint) == 2);
  CATCH_REQUIRE(warnings.size() == 2);
  CATCH_CHECK(contains(warnings[0], "step-00000003 is passed over"));
  CATCH_CHECK(contains(warnings[0], "manifest.json is damaged: it is missing"));
  CATCH_CHECK(contains(warnings[1], "step-00000004 is passed over"));
  CATCH_CHECK(contains(warnings[1], model.string() + " is damaged: it has "));

  for (const char* name : {"step-00000001", "step-00000002"})
    fs::remove(directory.path() / name / "model.safetensors");
  const std::string error =
      error_of([&] { read_latest_checkpoint(directory.path(), 0, [](const std::string&) {}); });
  CATCH_CHECK(error.starts_with("[no-valid-checkpoint]"));
  for (const char* number : {"1", "2", "3", "4"}) {
    CATCH_CHECK(contains(error, "step-0000000" + std::string(number) + " is passed over"));
  }
}
