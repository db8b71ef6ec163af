#include "files/retention.hpp"

#include <algorithm>
#include <set>
#include <system_error>

#include "files/checkpoint.hpp"
#include "files/checkpoint_layout.hpp"
#include "files/checkpoint_writer.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

bool is_valid(const fs::path& directory) {
  try {
    verify_checkpoint(directory);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

bool holds_only_its_own_files(const CheckpointEntry& checkpoint) {
  const auto& listed = checkpoint.files;
  return std::all_of(fs::directory_iterator(checkpoint.directory), fs::directory_iterator(), [&](const auto& file) {
    const std::string name = file.path().filename();
    return name == manifest_file_name || std::find(listed.begin(), listed.end(), name) != listed.end();
  });
}

std::set<std::string> runs_in(const std::vector<CheckpointEntry>& entries) {
  std::set<std::string> runs;
  for (const auto& entry : entries) {
    if (entry.readable()) runs.insert(entry.run_id);
  }
  return runs;
}

/// What is no folder holds no checkpoints that could be kept or removed.
std::vector<CheckpointEntry> entries_below(const fs::path& root) {
  std::error_code ignored;
  if (!fs::is_directory(root, ignored)) throw message::checkpoint_not_found(root, "it is no folder", {});
  return list_checkpoints(root);
}

}  // namespace

std::vector<fs::path> superfluous_checkpoints(const std::vector<CheckpointEntry>& entries, std::int64_t keep,
                                              const std::string& run_id, const fs::path& saved) {
  std::vector<fs::path> superfluous;
  std::int64_t kept = 0;
  bool kept_valid_one = false;
  for (const auto& entry : entries) {
    if (!entry.readable() || entry.run_id != run_id) continue;
    const bool wanted = kept++ < keep || !entry.names.empty() || entry.directory == saved;
    if (!kept_valid_one && (entry.directory == saved || is_valid(entry.directory))) {
      kept_valid_one = true;
    } else if (!wanted && holds_only_its_own_files(entry)) {
      superfluous.push_back(entry.directory);
    }
  }
  return superfluous;
}

std::vector<fs::path> superfluous_checkpoints(const fs::path& root, std::int64_t keep) {
  std::vector<fs::path> superfluous;
  const auto entries = entries_below(root);
  for (const auto& run_id : runs_in(entries)) {
    for (auto& directory : superfluous_checkpoints(entries, keep, run_id)) superfluous.push_back(std::move(directory));
  }
  return superfluous;
}

std::vector<fs::path> prune_checkpoints(const fs::path& root, std::int64_t keep) {
  std::vector<fs::path> removed;
  const auto runs = runs_in(entries_below(root));
  CheckpointWriter writer(root);
  for (const auto& run_id : runs) {
    for (auto& directory : writer.retire(keep, run_id)) removed.push_back(std::move(directory));
  }
  return removed;
}

}  // namespace lockstep
