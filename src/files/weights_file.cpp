#include "lockstep/files/weights_file.hpp"

#include <random>
#include <system_error>

#include "base/posix_file.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/safetensors.hpp"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

void require_safetensors(const fs::path& path) {
  if (path.extension() != ".safetensors") throw message::unknown_weights_format(path);
}

}  // namespace

void save_weights(const fs::path& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata) {
  require_safetensors(path);
  if (path.has_parent_path()) create_directories_durably(path.parent_path());
  // Not the process id: on a shared directory another machine may use the same one.
  const fs::path temporary = path.parent_path() / (".tmp-" + path.filename().string() + "-" +
                                                   std::to_string(std::random_device()()));
  write_safetensors(temporary, {tensors, metadata});
  try {
    rename_durably(temporary, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

NamedTensors load_weights(const fs::path& path) {
  require_safetensors(path);
  return read_safetensors(path).tensors;
}

}  // namespace lockstep
