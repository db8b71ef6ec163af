// The folder of a run, owned by one RunLogger at a time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "base/posix_file.hpp"

namespace lockstep {

/// Creates the folder if it is absent and locks it while this object lives, by a file in it that stays. The
/// lock is not the one of a checkpoint folder, so that both may be the same folder. Errors: FileError
/// `run-directory-in-use`, `cannot-write-file`, `cannot-create-directory`.
class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path path);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

  /// Replaces a file in the folder by one with this text. A reader, and a crash, see the old file or the new
  /// one.
  void replace_file(const std::string& name, std::string_view text) const;

 private:
  std::filesystem::path path_;
  DirectoryLock lock_;
};

}  // namespace lockstep
