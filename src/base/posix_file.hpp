// The few operations on files and directories that durable saving is made of.
//
// All of them go on after an interrupting signal and after a short write or read. Errors, by id:
// `cannot-read-file`, `cannot-write-file`, `cannot-create-directory`, each with the path and the operating
// system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "lockstep/base/error.hpp"

namespace lockstep {

/// Whether a symbolic link in the place of a file is followed. Links among the directories before it always
/// are.
enum class Links { follow, refuse };

/// A regular file, open for reading.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path, Links links = Links::follow);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// In bytes, when it was opened.
  [[nodiscard]] std::uint64_t size() const { return size_; }
  /// Fills `data` from `offset` on; a file that ends before is an error.
  void read(void* data, std::size_t size, std::uint64_t offset) const;
  /// All of the file.
  [[nodiscard]] std::string text() const;
  /// Of the whole file, read in constant memory.
  [[nodiscard]] std::uint32_t crc32c() const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::uint64_t size_ = 0;
};

/// Which file is at a path, and which of its states: it changes when another file is put there or this one is written to.
struct FileVersion {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::int64_t size = 0;
  std::int64_t seconds = 0;      // of the last change
  std::int64_t nanoseconds = 0;  // after it

  bool operator==(const FileVersion&) const = default;
};

/// Unset if nothing can be seen there. A symbolic link is not followed.
std::optional<FileVersion> version_of(const std::filesystem::path& path);

/// A file that did not exist before, open for writing. It is removed again unless finish() succeeds.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Small pieces are gathered, so that an error may come from a later call.
  void write(const void* data, std::size_t size);
  /// Brings the bytes to the disk and closes the file. Its directory still needs sync_directory().
  void finish();

  /// Of all that was given to write().
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint32_t crc32c() const { return crc32c_; }

 private:
  void write_gathered();
  void write_through(const char* bytes, std::size_t size);
  void start_disk();

  std::filesystem::path path_;
  FileDescriptor file_;
  std::vector<char> gathered_;
  std::uint64_t written_ = 0;  // to the system
  std::uint64_t started_ = 0;  // of it, on its way to the disk
  std::uint64_t size_ = 0;
  std::uint32_t crc32c_ = 0;
};

/// Keeps other processes, and other locks of this one, out of a directory while it lives, by a file in it
/// that stays. Throws what `in_use` makes of the directory where it is locked already, and `cannot-write-file` where the
/// file system has no locks.
class DirectoryLock {
 public:
  DirectoryLock(const std::filesystem::path& directory, const char* file_name,
                FileError (*in_use)(const std::string& directory));

  /// Whether the file was there before, as after a holder that died. If not, it may have been removed under a holder
  /// that lives.
  [[nodiscard]] bool had_file() const { return had_file_; }
  /// False once the file was removed or replaced, or locked by somebody whose locks this machine does not see.
  [[nodiscard]] bool is_held() const;

 private:
  std::filesystem::path path_;
  bool had_file_ = true;
  FileDescriptor file_;
  /// Each holder sets the file's time anew: on a disk that is full, a word in the file could not be written.
  timespec time_{};
};

/// Creates `path` and what is missing above it, durably.
void create_directories_durably(const std::filesystem::path& path);

/// Makes the creations, renames and removals in `path` durable.
void sync_directory(const std::filesystem::path& path);

/// Renames within a directory, replacing what is at `to`, and syncs the directory.
void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to);

/// Removes `path`, with everything below it if it is a directory. Links are removed, not followed.
void remove_tree(const std::filesystem::path& path);

}  // namespace lockstep
