// Which version of the sources a run was started from.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace lockstep {

struct GitState {
  std::string commit;
  /// What `git diff HEAD` prints, for `git apply`; unset if it took too long or is too large.
  std::optional<std::string> diff;
};

/// Nothing where `directory` belongs to no repository with a commit, or git is not there. Writes nothing, not
/// even git's index; runs no program that the repository's settings name.
std::optional<GitState> git_state(const std::filesystem::path& directory);

}  // namespace lockstep
