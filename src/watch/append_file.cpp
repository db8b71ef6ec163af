#include "watch/append_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

off_t size_of(int file) {
  struct stat status = {};
  return ::fstat(file, &status) == 0 ? status.st_size : 0;
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666)) {
  if (file_.get() < 0) throw message::cannot_write_file(path_, errno);
}

bool AppendFile::at_line_start() const {
  char last = '\n';
  if (const off_t size = size_of(file_.get()); size > 0) (void)!::pread(file_.get(), &last, 1, size - 1);
  return last == '\n';
}

void AppendFile::append(std::string_view bytes) {
  off_t taken = 0;
  while (!bytes.empty()) {
    const auto written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      taken += written;
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      const int error = errno;
      if (taken > 0) (void)!::ftruncate(file_.get(), size_of(file_.get()) - taken);
      throw message::cannot_write_file(path_, error);
    }
  }
}

void AppendFile::sync() {
  // EINVAL: not a file that could be synced.
  if (::fsync(file_.get()) != 0 && errno != EINVAL) throw message::cannot_write_file(path_, errno);
}

}  // namespace lockstep
