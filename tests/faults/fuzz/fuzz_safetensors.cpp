// Any bytes as a safetensors file: refused, or read and written again to the same tensors.
#include <unistd.h>

#include <cstdlib>

#include "scratch.hpp"
#include "tensors/safetensors_format.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

bool same(const NamedTensors& left, const NamedTensors& right) {
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto& [name, tensor] = left[i];
    const at::Tensor& other = right[i].second;
    if (name != right[i].first || tensor.scalar_type() != other.scalar_type() || tensor.sizes() != other.sizes() ||
        std::string_view(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()) !=
            std::string_view(static_cast<const char*>(other.const_data_ptr()), other.nbytes())) {
      return false;
    }
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Scratch scratch;
  const auto path = scratch.path() / "file";
  const std::string bytes = text_of(data, size);
  write_file(path, bytes);
  SafetensorsFile file;
  try {
    file = parse_safetensors(InputFile(path));
  } catch (const FileDamage&) {
    return 0;
  }
  if (size > 1'000'000) return 0;  // to be read was the question
  // What is read is what its own digest says, and one bit more or less is not.
  FileDigest digest = digest_of(bytes);
  verify_safetensors(InputFile(path), digest);
  digest.crc32c ^= 1;
  try {
    verify_safetensors(InputFile(path), digest);
    std::abort();
  } catch (const FileDamage&) {
  }
  std::string written;
  try {
    written = safetensors_bytes(file);
  } catch (const ConfigError&) {
    return 0;  // a name that is not UTF-8 is read, and not written
  }
  write_file(path, written);
  require(same(parse_safetensors(InputFile(path)).tensors, file.tensors));
  return 0;
}
