// Whatever happens to a byte of a checkpoint, it is refused by the name of what is damaged.
#include <torch/torch.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "files/checkpoint_layout.hpp"
#include "files/checkpoint_writer.hpp"
#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/small_checkpoint.hpp"
#include "support/temporary_directory.hpp"
#include "tensors/safetensors_format.hpp"

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::test;

namespace {

/// With every file that there can be, of several tensors each.
fs::path every_file(const fs::path& root) {
  torch::manual_seed(3);
  Checkpoint checkpoint = small_checkpoint(1);
  const auto tensors = [](const char* prefix) {
    return NamedTensors{{std::string(prefix) + "weight", torch::randn({9, 7})},
                        {std::string(prefix) + "flags", torch::tensor({true, false, true})},
                        {std::string(prefix) + "nothing", torch::empty({0, 4})},
                        {std::string(prefix) + "count", torch::tensor(12)}};
  };
  checkpoint.model = tensors("m.");
  checkpoint.ema = tensors("e.");
  checkpoint.optimizer = tensors("o/");
  checkpoint.objective = tensors("loss.");
  checkpoint.registered = tensors("mine/");
  checkpoint.rank = tensors("r.");
  checkpoint.other_ranks = {safetensors_bytes({tensors("s.")})};
  return CheckpointWriter(root).save(checkpoint);
}

/// As it was written before checksums of tensors were.
fs::path without_tensor_checksums(const fs::path& root) {
  const auto folder = every_file(root);
  auto manifest = read_manifest(folder);
  for (auto& listed : manifest["files"]) listed.erase("tensor_crc32c");
  write_text(folder / manifest_file_name, manifest_text(manifest));
  return folder;
}

std::string damage_of(const fs::path& folder) {
  try {
    read_checkpoint(folder);
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "";
}

bool names(const std::string& error, const fs::path& file) {
  return error.starts_with("[damaged-checkpoint] " + file.string() + " is damaged: ");
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path().filename());
  return files;
}

struct Header {
  std::size_t size = 0;
  std::map<std::size_t, std::string> ends;  ///< of the tensors that hold bytes
};

Header header_of(const std::string& file) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  Header header{sizeof length + length, {}};
  const auto entries = nlohmann::json::parse(file.substr(sizeof length, length));
  for (const auto& [name, entry] : entries.items()) {
    const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    if (end > begin) header.ends[header.size + end] = name;
  }
  return header;
}

}  // namespace

CATCH_TEST_CASE("a flipped bit in any block of any file is refused by file and tensor") {
  const TemporaryDirectory directory;
  const auto folder = every_file(directory.path());
  CATCH_REQUIRE(files_in(folder).size() == 8);
  for (const auto& name : files_in(folder)) {
    const auto path = folder / name;
    const std::string whole = read_text(path);
    const Header header = name == manifest_file_name ? Header{whole.size(), {}} : header_of(whole);
    constexpr std::size_t block = 64;
    for (std::size_t begin = 0; begin < whole.size(); begin += block) {
      for (const std::size_t bit : {begin * 8 + 1, begin * 8 + (begin * 37 + 300) % (8 * block), begin * 8 + 8 * block - 1}) {
        const std::size_t byte = bit / 8;
        if (byte >= whole.size()) continue;
        write_byte(path, byte, static_cast<char>(whole[byte] ^ (1 << bit % 8)));
        const std::string error = damage_of(folder);
        const bool in_tensor = byte >= header.size;
        const std::string tensor = in_tensor ? "tensor \"" + header.ends.upper_bound(byte)->second + "\"" : "";
        if (!names(error, path) || error.find(tensor) == std::string::npos) {
          CATCH_FAIL_CHECK(name << ", bit " << bit << " of " << tensor << ": " << error);
        }
        write_byte(path, byte, whole[byte]);
      }
    }
  }
  CATCH_CHECK(damage_of(folder).empty());
}

CATCH_TEST_CASE("a file cut at any byte of its header or at the edge of any tensor is refused by name") {
  const TemporaryDirectory directory, older;
  for (const auto& folder : {every_file(directory.path()), without_tensor_checksums(older.path())}) {
    for (const auto& name : files_in(folder)) {
      const auto path = folder / name;
      const std::string whole = read_text(path);
      std::set<std::size_t> cuts;
      if (name == manifest_file_name) {
        for (std::size_t size = 0; size < whole.size(); ++size) cuts.insert(size);
      } else {
        const Header header = header_of(whole);
        for (std::size_t size = 0; size <= header.size; ++size) cuts.insert(size);
        for (const auto& [end, tensor] : header.ends) cuts.insert({end - 1, end, end + 1});
      }
      for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
        if (*cut == whole.size()) continue;
        fs::resize_file(path, *cut);
        const std::string error = damage_of(folder);
        if (!names(error, path)) CATCH_FAIL_CHECK(name << " with " << *cut << " bytes: " << error);
      }
      write_text(path, whole);
    }
    CATCH_CHECK(damage_of(folder).empty());
  }
}

CATCH_TEST_CASE("every byte of a manifest counts") {
  const TemporaryDirectory directory;
  const auto folder = every_file(directory.path());
  const auto path = folder / manifest_file_name;
  const std::string whole = read_text(path);
  for (std::size_t byte = 0; byte < whole.size(); ++byte) {
    for (const char other : {static_cast<char>(whole[byte] ^ 1), '0', '9', '"', ' ', '\0', '\xff'}) {
      if (other == whole[byte]) continue;
      write_byte(path, byte, other);
      const std::string error = damage_of(folder);
      if (!names(error, path)) CATCH_FAIL_CHECK("byte " << byte << ": " << error);
    }
    write_byte(path, byte, whole[byte]);
  }
  CATCH_CHECK(damage_of(folder).empty());
}

CATCH_TEST_CASE("without checksums of tensors a flipped bit is still refused by file") {
  const TemporaryDirectory directory;
  const auto folder = without_tensor_checksums(directory.path());
  CATCH_CHECK(damage_of(folder).empty());
  for (const auto& name : files_in(folder)) {
    const std::string whole = read_text(folder / name);
    for (std::size_t byte = 5; byte < whole.size(); byte += 64) {
      write_byte(folder / name, byte, static_cast<char>(whole[byte] ^ 4));
      const std::string error = damage_of(folder);
      if (!names(error, folder / name)) CATCH_FAIL_CHECK(name << ", byte " << byte << ": " << error);
      write_byte(folder / name, byte, whole[byte]);
    }
  }
}

CATCH_TEST_CASE("checksums of tensors that are no checksums, or too few, are damage of the manifest or the file") {
  const TemporaryDirectory directory;
  const auto folder = every_file(directory.path());
  const auto whole = read_manifest(folder);
  for (const nlohmann::json& checksums : {nlohmann::json(3), nlohmann::json("123"), nlohmann::json("0123456X")}) {
    auto manifest = whole;
    manifest["files"]["ema.safetensors"]["tensor_crc32c"] = checksums;
    write_text(folder / manifest_file_name, manifest_text(manifest));
    CATCH_CHECK(names(damage_of(folder), folder / manifest_file_name));
  }
  auto manifest = whole;
  manifest["files"]["ema.safetensors"]["tensor_crc32c"] = "00000000";
  write_text(folder / manifest_file_name, manifest_text(manifest));
  CATCH_CHECK(damage_of(folder).find("it has 4 tensors, of which 1 were noted") != std::string::npos);
}

CATCH_TEST_CASE("a checkpoint copied by cp, tar and rsync loads, with the names beside it (cp, tar, rsync)") {
  const TemporaryDirectory directory;
  const auto root = directory.path() / "checkpoints";
  fs::path folder = every_file(root);
  CheckpointWriter(root).name("best", folder);
  const std::string at = "cd '" + directory.path().string() + "' && ";
  CATCH_REQUIRE(std::system((at + "cp -r checkpoints copied && cp -r checkpoints/best/ alone").c_str()) == 0);
  CATCH_REQUIRE(std::system((at + "tar cf all.tar checkpoints && mkdir unpacked && tar xf all.tar -C unpacked").c_str()) == 0);
  CATCH_REQUIRE(std::system((at + "rsync -a checkpoints/ synced").c_str()) == 0);
  const auto expected = read_checkpoint(folder);
  for (const char* name : {"copied/best", "copied/step-00000001", "alone", "unpacked/checkpoints/best", "synced/best"}) {
    CATCH_INFO(name);
    const auto copy = read_checkpoint(directory.path() / name);
    CATCH_CHECK(copy.manifest == expected.manifest);
    CATCH_CHECK(sha256(copy.model) == sha256(expected.model));
    CATCH_CHECK(sha256(copy.optimizer) == sha256(expected.optimizer));
  }
  // A name inside the copy leads inside the copy.
  fs::remove_all(root);
  CATCH_CHECK_NOTHROW(read_checkpoint(directory.path() / "copied" / "best"));
}
