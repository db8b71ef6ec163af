#include "watch/run_directory.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

constexpr const char* lock_name = ".run.lock";

int open_lock(const std::filesystem::path& directory) {
  create_directories_durably(directory);
  return ::open((directory / lock_name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
}

}  // namespace

RunDirectory::RunDirectory(std::filesystem::path path) : path_(std::move(path)), lock_(open_lock(path_)) {
  if (lock_.get() >= 0 && ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return;
  if (errno == EWOULDBLOCK) throw message::run_directory_in_use(path_);
  throw message::cannot_write_file(path_ / lock_name, errno);
}

void RunDirectory::replace_file(const std::string& name, const std::string& text) {
  const std::filesystem::path temporary = path_ / (name + ".new");
  remove_tree(temporary);
  OutputFile file(temporary);
  file.write(text.data(), text.size());
  file.finish();
  rename_durably(temporary, path_ / name);
}

}  // namespace lockstep
