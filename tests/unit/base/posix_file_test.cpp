#include "base/posix_file.hpp"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/crc32c.hpp"
#include "lockstep/base/error.hpp"
#include "lockstep/base/messages.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/temporary_directory.hpp"

namespace fs = std::filesystem;
using namespace lockstep;
using namespace lockstep::test;

namespace {

// The id and the text of the FileError that `action` throws.
template <class Action>
std::pair<std::string, std::string> file_error(Action action) {
  try {
    action();
  } catch (const FileError& error) {
    return {error.id(), error.what()};
  }
  return {"none", ""};
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

CATCH_TEST_CASE("An output file holds what was written, with its size and checksum") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  // Longer than one piece, so that pieces are joined.
  const std::string text(3'000'000, 'q');
  OutputFile file(path);
  file.write("123", 3);
  file.write(text.data(), text.size());
  file.finish();
  CATCH_CHECK(read_text(path) == "123" + text);
  CATCH_CHECK(file.size() == 3'000'003);
  CATCH_CHECK(file.crc32c() == crc32c(("123" + text).data(), 3'000'003));
  const InputFile input(path);
  CATCH_CHECK(input.size() == file.size());
  CATCH_CHECK(input.crc32c() == file.crc32c());
}

CATCH_TEST_CASE("An output file that is not finished leaves nothing behind") {
  const TemporaryDirectory directory;
  {
    OutputFile file(directory.path() / "file");
    file.write("123", 3);
  }
  CATCH_CHECK(fs::is_empty(directory.path()));
}

CATCH_TEST_CASE("An output file never replaces what is there") {
  const TemporaryDirectory directory;
  write_text(directory.path() / "file", "old");
  const auto [id, text] = file_error([&] { OutputFile file(directory.path() / "file"); });
  CATCH_CHECK(id == "cannot-write-file");
  CATCH_CHECK(contains(text, (directory.path() / "file").string() + ": File exists. Move"));
  CATCH_CHECK(read_text(directory.path() / "file") == "old");
}

CATCH_TEST_CASE(
    "A write that meets the limit on file sizes is an error and leaves nothing behind (RLIMIT_FSIZE)") {
  const TemporaryDirectory directory;
  const FileSizeLimit limit(1'000);
  const std::string text(1'001, 'q');
  const auto [id, error] = file_error([&] {
    OutputFile file(directory.path() / "file");
    file.write(text.data(), text.size());
    file.finish();
  });
  CATCH_CHECK(id == "cannot-write-file");
  CATCH_CHECK(contains(error, "File too large. Raise the limit"));
  CATCH_CHECK(fs::is_empty(directory.path()));
}

CATCH_TEST_CASE("An input file is a regular file, and reading past its end is an error") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  write_text(path, "abcdef");
  fs::create_symlink("file", directory.path() / "link");
  CATCH_REQUIRE(::mkfifo((directory.path() / "pipe").c_str(), 0600) == 0);

  char bytes[3] = {};
  InputFile(directory.path() / "link").read(bytes, 3, 2);
  CATCH_CHECK(std::string(bytes, 3) == "cde");

  CATCH_CHECK(contains(file_error([&] { InputFile(path).read(bytes, 3, 4); }).second, "became shorter"));
  CATCH_CHECK(contains(file_error([&] { InputFile(directory.path() / "link", Links::refuse); }).second,
                       "symbolic link"));
  CATCH_CHECK(
      contains(file_error([&] { InputFile(directory.path() / "pipe"); }).second, "not a regular file"));
  CATCH_CHECK(contains(file_error([&] { InputFile(directory.path()); }).second, "not a regular file"));
  CATCH_CHECK(contains(file_error([&] { InputFile(directory.path() / "absent"); }).second,
                       "No such file or directory. Check the spelling"));
}

CATCH_TEST_CASE("A file's version changes with its bytes and with the file, not with a look at it") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "file";
  CATCH_CHECK(!version_of(path));
  write_text(path, "abc");
  const auto version = version_of(path);
  CATCH_REQUIRE(version);
  CATCH_CHECK(read_text(path) == "abc");
  CATCH_CHECK(version_of(path) == version);
  // The clock of a file system moves in steps of some milliseconds.
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  write_text(path, "abd");
  CATCH_CHECK(version_of(path) != version);
  write_text(directory.path() / "other", "abc");
  fs::rename(directory.path() / "other", path);
  CATCH_CHECK(version_of(path) != version);
  fs::remove(path);
  fs::create_symlink("nowhere", path);
  CATCH_CHECK(version_of(path));
}

CATCH_TEST_CASE("A lock knows whether its file was there before, and whether it is still the one that counts") {
  const TemporaryDirectory directory;
  const auto in_use = [](const std::string& path) { return FileError("none", path); };
  std::optional<DirectoryLock> lock(std::in_place, directory.path(), ".lock", in_use);
  CATCH_CHECK(!lock->had_file());
  CATCH_CHECK(lock->is_held());
  lock.reset();
  lock.emplace(directory.path(), ".lock", in_use);
  CATCH_CHECK(lock->had_file());
  CATCH_CHECK(lock->is_held());
  std::filesystem::remove(directory.path() / ".lock");
  CATCH_CHECK(!lock->is_held());
  const DirectoryLock other(directory.path(), ".lock", in_use);
  CATCH_CHECK(other.is_held());
  CATCH_CHECK(!lock->is_held());
}

CATCH_TEST_CASE("A directory has one lock at a time, also within a process") {
  const TemporaryDirectory directory;
  const auto in_use = message::run_directory_in_use;
  std::optional<DirectoryLock> first(std::in_place, directory.path(), ".lock", in_use);
  CATCH_CHECK(file_error([&] { DirectoryLock second(directory.path(), ".lock", in_use); }).first ==
              "run-directory-in-use");
  first.reset();
  CATCH_CHECK(file_error([&] { DirectoryLock second(directory.path(), ".lock", in_use); }).first == "none");
}

CATCH_TEST_CASE("Directories are created with those above them, unless a file is in the way") {
  const TemporaryDirectory directory;
  create_directories_durably(directory.path() / "a" / "b" / "c");
  create_directories_durably(directory.path() / "a" / "b" / "c");
  CATCH_CHECK(fs::is_directory(directory.path() / "a" / "b" / "c"));
  write_text(directory.path() / "file", "");
  for (const auto& path : {directory.path() / "file", directory.path() / "file" / "b"}) {
    CATCH_CHECK(file_error([&] { create_directories_durably(path); }).first == "cannot-create-directory");
  }
}

CATCH_TEST_CASE("Removing a tree leaves what its links lead to") {
  const TemporaryDirectory directory;
  create_directories_durably(directory.path() / "kept");
  write_text(directory.path() / "kept" / "file", "1");
  create_directories_durably(directory.path() / "tree");
  fs::create_directory_symlink(directory.path() / "kept", directory.path() / "tree" / "link");
  remove_tree(directory.path() / "tree");
  CATCH_CHECK(!fs::exists(directory.path() / "tree"));
  CATCH_CHECK(read_text(directory.path() / "kept" / "file") == "1");
}
