// A repository with one commit.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "support/file_text.hpp"

namespace lockstep::test {

/// Makes `directory` a repository of its own, in which `file` with the text "one\n" is committed.
inline void make_git_repository(const std::filesystem::path& directory) {
  write_text(directory / "file", "one\n");
  const std::string command =
      "cd '" + directory.string() +
      "' && git init -q && git add file && git -c user.name=a -c user.email=a@b commit -q -m c";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("git made no repository");
}

}  // namespace lockstep::test
