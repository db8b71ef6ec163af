#include "cli/source.hpp"

#include <iostream>
#include <system_error>
#include <vector>

#include "files/checkpoint_layout.hpp"
#include "lockstep/base/error.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/files/checkpoint_folder.hpp"

namespace lockstep::cli {
namespace fs = std::filesystem;

bool holds_checkpoints(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) && !fs::exists(path / manifest_file_name, ignored) &&
         !is_step_folder_name(path.filename()) && !list_checkpoints(path).empty();
}

fs::path find_source(const fs::path& given) {
  if (!holds_checkpoints(given)) return given;
  std::vector<std::string> passed_over;
  for (const auto& entry : list_checkpoints(given)) {
    try {
      verify_checkpoint(entry.directory);
    } catch (const CheckpointError& error) {
      passed_over.push_back(message::checkpoint_passed_over(entry.directory, error.what()));
      std::cerr << "lockstep: " << passed_over.back() << '\n';
      continue;
    }
    std::cerr << "lockstep: the newest valid checkpoint of " << given.string() << " is "
              << entry.directory.filename().string() << '\n';
    return entry.directory;
  }
  throw message::no_valid_checkpoint(given, passed_over);
}

}  // namespace lockstep::cli
