// A whole folder made of any bytes: refused as a checkpoint, or read, with the same verdict from every reader.
//
// Input: for each file a byte that says which it is, two for its length, and its bytes. The manifest lists sizes and
// checksums that fit, unless an odd byte says which file's are to be wrong.
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/crc32c.hpp"
#include "files/checkpoint.hpp"
#include "files/checkpoint_layout.hpp"
#include "scratch.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr std::array names = {model_file_name,     ema_file_name,        optimizer_file_name,
                              objective_file_name, registered_file_name, "rank-00000.safetensors",
                              "rank-00001.safetensors"};

nlohmann::json digest(const std::string& bytes, bool right) {
  try {
    FileDigest found = digest_of(bytes);
    if (!right && !found.tensors.empty()) found.tensors.back() ^= 1;
    return digest_to_json(found);
  } catch (const FileDamage&) {
    return digest_to_json({bytes.size(), crc32c(bytes.data(), bytes.size())});
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Scratch scratch;
  const auto folder = scratch.path() / "step-00000001";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  nlohmann::json files = nlohmann::json::object();
  while (size >= 3) {
    const std::string name = names[(data[0] >> 1) % names.size()];
    const std::size_t length = std::min<std::size_t>(data[1] | data[2] << 8, size - 3);
    const std::string bytes = text_of(data + 3, length);
    write_file(folder / name, bytes);
    files[name] = digest(bytes, data[0] % 2 == 0);
    data += 3 + length, size -= 3 + length;
  }
  const nlohmann::json manifest = {{"format_version", 1}, {"run_id", "run"}, {"save_index", 0},
                                   {"state", {{"step", 1}, {"batches", 1}}}, {"files", std::move(files)}};
  write_file(folder / manifest_file_name, manifest_text(manifest));

  const auto is_refused = [](auto read) {
    try {
      read();
      return false;
    } catch (const CheckpointError&) {
      return true;
    }
  };
  const bool refused = is_refused([&] { (void)read_checkpoint(folder); });
  const bool not_verified = is_refused([&] { verify_checkpoint(folder); });
  const bool not_latest = is_refused([&] { (void)read_latest_checkpoint(scratch.path(), 1, [](const auto&) {}); });
  if (refused != not_verified || refused != not_latest) std::abort();
  return 0;
}
