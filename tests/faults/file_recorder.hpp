// What a program does to a folder, call by call, as a file system sees it.
//
// The test program itself defines the calls that change files (file_recorder.cpp), and so gets those of the
// library and of the C++ standard library alike; the code under test has no part in it. Calls that are not
// caught show in the end: the folder differs from what was recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::test {

/// A file, a directory or a symbolic link, under whatever name.
struct Node {
  enum class Kind { file, directory, link };
  Kind kind = Kind::file;
  std::string target = {};  ///< of a link
};

inline constexpr int no_node = -1;

struct Operation {
  enum class Kind { entries, write, sync };
  Kind kind;
  int node;  ///< the directory whose entries change, or what is written or synced
  /// Of a directory: names and what they lead to from now on. Together or not at all.
  std::vector<std::pair<std::string, int>> entries = {};
  std::uint64_t offset = 0;  ///< of a write
  std::string bytes = {};    ///< of a write
  std::string text = {};     ///< for people
};

struct Recording {
  std::vector<Node> nodes;  ///< the first one is the folder
  std::vector<Operation> operations;
};

/// Records while it lives what this process does inside a folder, which is empty at first. One at a time.
class FileRecorder {
 public:
  explicit FileRecorder(const std::filesystem::path& folder);
  ~FileRecorder();
  FileRecorder(const FileRecorder&) = delete;
  FileRecorder& operator=(const FileRecorder&) = delete;

  /// Operations so far. Any thread.
  [[nodiscard]] std::size_t size() const;
  /// All of them, once nothing in the folder changes any more.
  [[nodiscard]] const Recording& recording() const;
};

/// While it lives, no write of this process takes more than `bytes` at once. One at a time.
class ShortWrites {
 public:
  explicit ShortWrites(std::size_t bytes);
  ~ShortWrites();
  ShortWrites(const ShortWrites&) = delete;
  ShortWrites& operator=(const ShortWrites&) = delete;
};

/// While it lives, calls `call` before this process opens a file or directory whose path ends in
/// `path_end`, once. One at a time.
class BeforeOpening {
 public:
  BeforeOpening(std::string path_end, std::function<void()> call);
  ~BeforeOpening();
  BeforeOpening(const BeforeOpening&) = delete;
  BeforeOpening& operator=(const BeforeOpening&) = delete;

  /// It was called.
  [[nodiscard]] bool happened() const;
};

}  // namespace lockstep::test
