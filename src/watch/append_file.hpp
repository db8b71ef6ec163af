// A file that only grows, by whole pieces.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/posix_file.hpp"

namespace lockstep {

/// Created if absent. Errors: FileError `cannot-write-file`.
class AppendFile {
 public:
  explicit AppendFile(std::filesystem::path path);

  /// Whether the file is empty or its last byte is a line feed.
  [[nodiscard]] bool at_line_start() const;
  /// One write(2) where the system takes all bytes at once. If it takes only some, on a full disk say, they
  /// are removed again.
  void append(std::string_view bytes);
  /// Brings the bytes to the disk.
  void sync();

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace lockstep
