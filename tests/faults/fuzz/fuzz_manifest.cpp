// Any bytes as a manifest, as they are or with a checksum that fits: refused as a damaged checkpoint, or read.
#include <unistd.h>

#include "base/crc32c.hpp"
#include "files/checkpoint.hpp"
#include "files/checkpoint_layout.hpp"
#include "scratch.hpp"

using namespace lockstep;
using namespace lockstep::test;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Scratch scratch;
  const auto folder = scratch.path() / "step-00000001";
  std::filesystem::create_directories(folder);
  std::string text = text_of(data, size);
  if (text.starts_with("{")) {
    char line[64];
    std::snprintf(line, sizeof line, ",\n  \"manifest_crc32c\": \"%08x\"\n}\n", crc32c(text.data(), text.size()));
    text += line;
  }
  write_file(folder / manifest_file_name, text);
  try {
    const auto manifest = read_manifest(folder);
    for (const auto& listed : manifest["files"]) (void)digest_from_json(listed);
    (void)manifest_text(manifest);
  } catch (const CheckpointError&) {
  }
  (void)list_checkpoints(scratch.path());
  return 0;
}
