#include "watch/run_record.hpp"

#include <fmt/chrono.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/version.hpp"
#include "watch/git_state.hpp"

namespace lockstep {
namespace {

using nlohmann::ordered_json;

#ifdef __clang__
constexpr const char* compiler = "clang++ " __clang_version__;
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

constexpr const char* file_name = "run.json";

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string working_directory() {
  std::error_code ignored;
  return std::filesystem::current_path(ignored);
}

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

/// The starts that were recorded before; none where the file is not one of ours.
ordered_json earlier_starts(const std::filesystem::path& path) {
  const auto run = ordered_json::parse(text_of(path), nullptr, /*allow_exceptions=*/false);
  if (!run.is_object() || !run.contains("starts") || !run["starts"].is_array()) return ordered_json::array();
  return run["starts"];
}

/// Keeps the text, unless an earlier process left the same, and returns the name of its file.
std::string keep_patch(const RunDirectory& directory, const std::string& text) {
  std::string name = "diff.patch";
  for (int number = 2; std::filesystem::exists(directory.path() / name); ++number) {
    if (text_of(directory.path() / name) == text) return name;
    name = fmt::format("diff-{}.patch", number);
  }
  directory.replace_file(name, text);
  return name;
}

ordered_json describe_sources(const RunDirectory& directory) {
  const auto git = git_state(working_directory());
  if (!git) return nullptr;
  ordered_json changes = nullptr;
  if (!git->diff) {
    changes = "too many to record";
  } else if (!git->diff->empty()) {
    changes = keep_patch(directory, *git->diff);
  }
  return {{"commit", git->commit}, {"changes", std::move(changes)}};
}

ordered_json describe_start(const RunStart& start) {
  ordered_json versions = {{"lockstep", LOCKSTEP_VERSION}, {"compiler", compiler}};
  for (const auto& [name, text] : start.versions) versions[name] = text;
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  return {{"run_id", start.run_id},
          {"started", fmt::format("{:%FT%TZ}", fmt::gmtime(now))},
          {"first_step", start.plan.first_step},
          {"seed", start.seed ? ordered_json(*start.seed) : ordered_json(nullptr)},
          {"host", host_name()},
          {"process", ::getpid()},
          {"directory", working_directory()},
          {"command", command_line()},
          {"versions", std::move(versions)}};
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name = {};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

void RunRecord::begin(const RunStart& start) {
  if (!recorded_.insert(start.run_id).second) return;
  ordered_json starts = earlier_starts(directory_.path() / file_name);
  starts.push_back(describe_start(start));
  if (record_git_) starts.back()["git"] = describe_sources(directory_);
  const ordered_json run = {{"starts", std::move(starts)}};
  directory_.replace_file(file_name,
                          run.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace lockstep
