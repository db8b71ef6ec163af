#include "base/posix_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <system_error>
#include <utility>
#include <vector>

#include "base/crc32c.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

// Checksum and transfer share one piece while it is in the processor's cache.
constexpr std::size_t piece_size = std::size_t{1} << 20;
// A call into the system costs as much as copying so many bytes.
constexpr std::size_t gathered_size = std::size_t{1} << 16;
// The disk begins with so much while the rest is still being copied and summed up.
constexpr std::uint64_t started_size = std::uint64_t{8} << 20;

template <class Call>
auto retry_interrupted(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

}  // namespace

// O_NONBLOCK: opening a pipe would wait for its writer.
InputFile::InputFile(std::filesystem::path path, Links links)
    : path_(std::move(path)), file_(retry_interrupted([&] {
        return ::open(path_.c_str(),
                      O_RDONLY | O_CLOEXEC | O_NONBLOCK | (links == Links::refuse ? O_NOFOLLOW : 0));
      })) {
  if (file_.get() < 0) {
    if (errno == ELOOP) throw message::cannot_read_file(path_, "is a symbolic link that is not followed");
    throw message::cannot_read_file(path_, errno);
  }
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) throw message::cannot_read_file(path_, errno);
  if (!S_ISREG(status.st_mode)) throw message::cannot_read_file(path_, "is not a regular file");
  size_ = static_cast<std::uint64_t>(status.st_size);
}

std::optional<FileVersion> version_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return FileVersion{.device = status.st_dev,
                     .inode = status.st_ino,
                     .size = status.st_size,
                     .seconds = status.st_ctim.tv_sec,
                     .nanoseconds = status.st_ctim.tv_nsec};
}

void InputFile::read(void* data, std::size_t size, std::uint64_t offset) const {
  auto bytes = static_cast<char*>(data);
  while (size > 0) {
    const auto count =
        retry_interrupted([&] { return ::pread(file_.get(), bytes, size, static_cast<off_t>(offset)); });
    if (count < 0) throw message::cannot_read_file(path_, errno);
    if (count == 0) throw message::cannot_read_file(path_, "became shorter while it was read");
    bytes += count, offset += static_cast<std::uint64_t>(count), size -= static_cast<std::size_t>(count);
  }
}

std::string InputFile::text() const {
  std::string text(static_cast<std::size_t>(size_), '\0');
  read(text.data(), text.size(), 0);
  return text;
}

std::uint32_t InputFile::crc32c() const {
  std::vector<char> piece(static_cast<std::size_t>(std::min<std::uint64_t>(piece_size, size_)));
  std::uint32_t crc = 0;
  for (std::uint64_t offset = 0; offset < size_; offset += piece.size()) {
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), size_ - offset));
    read(piece.data(), count, offset);
    crc = lockstep::crc32c(piece.data(), count, crc);
  }
  return crc;
}

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)), file_(retry_interrupted([&] {
        return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      })) {
  if (file_.get() < 0) throw message::cannot_write_file(path_, errno);
}

OutputFile::~OutputFile() {
  if (file_.get() >= 0) ::unlink(path_.c_str());
}

void OutputFile::write(const void* data, std::size_t size) {
  if (gathered_.size() + size > gathered_size) write_gathered();
  const bool small = size < gathered_size;
  auto bytes = static_cast<const char*>(data);
  while (size > 0) {
    const std::size_t count = std::min(size, piece_size);
    if (small) {
      gathered_.insert(gathered_.end(), bytes, bytes + count);
    } else {
      write_through(bytes, count);
    }
    crc32c_ = lockstep::crc32c(bytes, count, crc32c_);
    size_ += count, bytes += count, size -= count;
  }
}

void OutputFile::write_gathered() {
  write_through(gathered_.data(), gathered_.size());
  gathered_.clear();
}

void OutputFile::write_through(const char* bytes, std::size_t size) {
  while (size > 0) {
    const auto count = retry_interrupted([&] { return ::write(file_.get(), bytes, size); });
    if (count < 0) throw message::cannot_write_file(path_, errno);
    bytes += count, size -= static_cast<std::size_t>(count);
    written_ += static_cast<std::uint64_t>(count);
  }
  start_disk();
}

void OutputFile::start_disk() {
#ifdef SYNC_FILE_RANGE_WRITE
  if (written_ - started_ < started_size) return;
  // Only a head start: finish() waits for everything, and tells of what fails.
  (void)::sync_file_range(file_.get(), static_cast<off_t>(started_), static_cast<off_t>(written_ - started_),
                          SYNC_FILE_RANGE_WRITE);
  started_ = written_;
#endif
}

void OutputFile::finish() {
  write_gathered();
  if (retry_interrupted([&] { return ::fsync(file_.get()); }) != 0) {
    throw message::cannot_write_file(path_, errno);
  }
  // Not retried: after an interrupted close() the descriptor is gone, and the bytes are already on the disk.
  if (::close(file_.release()) != 0 && errno != EINTR) {
    const int error = errno;
    ::unlink(path_.c_str());
    throw message::cannot_write_file(path_, error);
  }
}

DirectoryLock::DirectoryLock(const std::filesystem::path& directory, const char* file_name,
                             FileError (*in_use)(const std::string& directory))
    : path_(directory / file_name) {
  constexpr int flags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  const auto open = [&](int more) { return ::open(path_.c_str(), flags | more, 0666); };
  file_ = FileDescriptor(retry_interrupted([&] { return open(O_EXCL); }));
  if (file_.get() >= 0) {
    had_file_ = false;
    // What is written under the lock must not outlive its file.
    sync_directory(directory);
  } else if (errno == EEXIST) {
    file_ = FileDescriptor(retry_interrupted([&] { return open(0); }));
  }
  if (file_.get() < 0) throw message::cannot_write_file(path_, errno);
  if (retry_interrupted([&] { return ::flock(file_.get(), LOCK_EX | LOCK_NB); }) != 0) {
    if (errno == EWOULDBLOCK) throw in_use(directory);
    throw message::cannot_write_file(path_, errno);
  }
  struct stat status {};
  if (::futimens(file_.get(), nullptr) != 0 || ::fstat(file_.get(), &status) != 0) {
    throw message::cannot_write_file(path_, errno);
  }
  time_ = status.st_mtim;
}

bool DirectoryLock::is_held() const {
  struct stat own {}, present {};
  if (::fstat(file_.get(), &own) != 0 || ::lstat(path_.c_str(), &present) != 0) return false;
  const bool same_file = own.st_dev == present.st_dev && own.st_ino == present.st_ino;
  return same_file && present.st_mtim.tv_sec == time_.tv_sec && present.st_mtim.tv_nsec == time_.tv_nsec;
}

void create_directories_durably(const std::filesystem::path& path) {
  const auto exists = [&path] {
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored);
  };
  if (exists()) return;
  const std::filesystem::path parent = path.parent_path();
  if (!parent.empty() && parent != path) create_directories_durably(parent);
  if (::mkdir(path.c_str(), 0777) != 0) {
    const int error = errno;
    if (error == EEXIST && exists()) return;
    throw message::cannot_create_directory(path, error);
  }
  sync_directory(parent);
}

void sync_directory(const std::filesystem::path& path) {
  const std::filesystem::path directory = path.empty() ? "." : path;
  const FileDescriptor file(
      retry_interrupted([&] { return ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (file.get() < 0) throw message::cannot_write_file(directory, errno);
  // EINVAL: a file system that has nothing to sync in a directory.
  if (retry_interrupted([&] { return ::fsync(file.get()); }) != 0 && errno != EINVAL) {
    throw message::cannot_write_file(directory, errno);
  }
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) throw message::cannot_write_file(to, errno);
  sync_directory(to.parent_path());
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw message::cannot_write_file(path, error.value());
}

}  // namespace lockstep
