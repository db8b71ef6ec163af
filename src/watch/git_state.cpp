#include "watch/git_state.hpp"

#include <utility>
#include <vector>

#include "watch/command.hpp"

namespace lockstep {
namespace {

std::optional<std::string> git(const std::filesystem::path& directory, std::vector<std::string> arguments) {
  std::vector<std::string> command = {"git", "-C", directory, "-c", "core.fsmonitor=false"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return captured_output(command, {"GIT_OPTIONAL_LOCKS=0"});
}

}  // namespace

std::optional<GitState> git_state(const std::filesystem::path& directory) {
  auto commit = git(directory, {"rev-parse", "--verify", "HEAD"});
  if (!commit) return {};
  if (commit->ends_with('\n')) commit->pop_back();
  auto diff = git(directory, {"diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary"});
  return GitState{*std::move(commit), std::move(diff)};
}

}  // namespace lockstep
