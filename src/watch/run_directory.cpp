#include "watch/run_directory.hpp"

#include <utility>

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

const std::filesystem::path& created(const std::filesystem::path& directory) {
  create_directories_durably(directory);
  return directory;
}

}  // namespace

RunDirectory::RunDirectory(std::filesystem::path path)
    : path_(std::move(path)), lock_(created(path_), ".run.lock", message::run_directory_in_use) {}

void RunDirectory::replace_file(const std::string& name, std::string_view text) const {
  // Not named after the file: some programs take any file with a certain word in its name for one of theirs.
  const std::filesystem::path temporary = path_ / ".new";
  remove_tree(temporary);
  OutputFile file(temporary);
  file.write(text.data(), text.size());
  file.finish();
  rename_durably(temporary, path_ / name);
}

}  // namespace lockstep
