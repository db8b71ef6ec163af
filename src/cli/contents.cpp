#include "cli/contents.hpp"

#include <algorithm>
#include <cmath>
#include <system_error>

#include "cli/source.hpp"
#include "files/checkpoint.hpp"
#include "files/checkpoint_layout.hpp"
#include "lockstep/files/weights_file.hpp"

namespace lockstep::cli {
namespace fs = std::filesystem;

Contents open_contents(const fs::path& given) {
  const fs::path path = find_source(given);
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return {path, nullptr, {model_file_name}};
  Contents contents{path, read_manifest(step_folder_of(path)), {}};
  for (const auto& file : contents.manifest["files"].items()) contents.files.push_back(file.key());
  return contents;
}

NamedTensors read_tensors(const Contents& contents, const std::string& file) {
  if (std::find(contents.files.begin(), contents.files.end(), file) == contents.files.end()) return {};
  if (contents.manifest.is_null()) return read_weights(contents.path);
  const FileDigest expected = digest_from_json(contents.manifest["files"][file]);
  return read_inside(step_folder_of(contents.path) / file, [&](const InputFile& input) {
           return parse_safetensors(input, &expected);
         }).tensors;
}

std::uint64_t bytes_of(const Contents& contents, const std::string& file) {
  if (contents.manifest.is_null()) return fs::file_size(contents.path);
  return contents.manifest["files"][file]["size"];
}

double norm(const at::Tensor& tensor) {
  constexpr std::int64_t piece_size = 1 << 20;  // of doubles in memory at a time
  double sum = 0;
  for (const auto& piece : tensor.flatten().split(piece_size)) {
    const at::Tensor values = piece.to(at::kDouble);
    sum += values.dot(values).item<double>();
  }
  return std::sqrt(sum);
}

}  // namespace lockstep::cli
