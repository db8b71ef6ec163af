#include "files/checkpoint.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <system_error>
#include <tuple>

#include "files/checkpoint_layout.hpp"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

// Names first, then the newest step folders: what somebody who mistyped a path may have meant.
std::vector<std::string> present_in(const fs::path& directory) {
  constexpr std::size_t shown = 5;
  std::vector<std::string> present;
  std::error_code ignored;
  if (!fs::is_directory(directory, ignored)) return present;
  for (const char* name : checkpoint_names) {
    if (fs::is_symlink(directory / name, ignored)) present.emplace_back(name);
  }
  const auto entries = list_checkpoints(directory);
  for (std::size_t i = 0; i < std::min(shown, entries.size()); ++i) {
    present.push_back(entries[i].directory.filename().string());
  }
  if (entries.size() > shown) present.emplace_back("older ones");
  return present;
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

fs::path follow_name(const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  if (error || !is_step_folder_name(target.string())) {
    throw message::damaged_checkpoint(
        link, "it leads to " + target.string() + " instead of a step folder beside it");
  }
  const fs::path directory = link.parent_path() / target;
  if (!fs::is_directory(fs::symlink_status(directory, error))) {
    throw message::checkpoint_not_found(link,
                                        "it leads to " + target.string() + ", which is no folder beside it",
                                        present_in(parent_of(link)));
  }
  return directory;
}

using Places = std::map<std::string, NamedTensors*>;

/// Verifies all files, and puts the tensors of those that have a place there. Returns the manifest.
nlohmann::json read_folder(const fs::path& directory, const Places& places) {
  nlohmann::json manifest = read_manifest(directory);
  for (const auto& [name, listed] : manifest["files"].items()) {
    const FileDigest expected = digest_from_json(listed);
    const auto place = places.find(name);
    read_inside(directory / name, [&](const InputFile& file) {
      if (place == places.end()) return verify_safetensors(file, expected);
      *place->second = parse_safetensors(file, &expected).tensors;
    });
  }
  return manifest;
}

std::vector<std::string> names_of(const fs::path& directory) {
  std::vector<std::string> names;
  for (const char* name : checkpoint_names) {
    std::error_code no_such_name;
    if (fs::read_symlink(directory.parent_path() / name, no_such_name) == directory.filename()) names.emplace_back(name);
  }
  return names;
}

CheckpointEntry entry_of(const fs::path& directory, const nlohmann::json& manifest) {
  const auto& state = manifest.at("state");
  CheckpointEntry entry{.directory = directory,
                        .run_id = manifest.at("run_id"),
                        .step = state.at("step"),
                        .batches = state.at("batches"),
                        .save_index = manifest.at("save_index")};
  if (const auto epoch = state.find("epoch"); epoch != state.end() && epoch->is_number_integer()) entry.epoch = *epoch;
  for (const auto& [name, digest] : manifest.at("files").items()) {
    entry.files.push_back(name);
    entry.bytes += digest.at("size").get<std::uint64_t>();
  }
  return entry;
}

CheckpointEntry entry_of(const fs::path& directory) {
  try {
    return entry_of(directory, read_manifest(directory));
  } catch (const CheckpointError& error) {
    return {.directory = directory, .problem = error.what()};
  }
}

}  // namespace

fs::path step_folder_of(const fs::path& given) {
  const fs::path path = given.has_filename() ? given : given.parent_path();
  std::error_code ignored;
  const auto status = fs::symlink_status(path, ignored);
  if (fs::is_symlink(status)) return follow_name(path);
  if (!fs::is_directory(status)) {
    const char* problem = fs::exists(status)
                              ? "it is a file, not a folder; weights from a file are loaded with load_weights()"
                              : "there is nothing of that name";
    throw message::checkpoint_not_found(given, problem, present_in(parent_of(path)));
  }
  if (!is_step_folder_name(path.filename()) && !fs::exists(path / manifest_file_name, ignored)) {
    throw message::checkpoint_not_found(given, "it is a folder without a manifest.json", present_in(path));
  }
  return path;
}

Checkpoint read_checkpoint(const fs::path& path, int rank) {
  Checkpoint checkpoint;
  checkpoint.manifest = read_folder(step_folder_of(path), {{model_file_name, &checkpoint.model},
                                                           {ema_file_name, &checkpoint.ema},
                                                           {optimizer_file_name, &checkpoint.optimizer},
                                                           {objective_file_name, &checkpoint.objective},
                                                           {registered_file_name, &checkpoint.registered},
                                                           {rank_file_name(rank), &checkpoint.rank}});
  return checkpoint;
}

NamedTensors read_checkpoint_file(const fs::path& path, const std::string& file_name) {
  NamedTensors tensors;
  read_folder(step_folder_of(path), {{file_name, &tensors}});
  return tensors;
}

fs::path find_checkpoint(const fs::path& given, const fs::path& root) {
  std::error_code ignored;
  if (root.empty() || given.is_absolute() || fs::exists(fs::symlink_status(given, ignored))) return given;
  const fs::path below = root / given;
  if (fs::exists(fs::symlink_status(below, ignored))) return below;
  throw message::checkpoint_not_found(given, "there is nothing of that name, nor at " + below.string(), present_in(root));
}

void verify_checkpoint(const fs::path& path) { read_folder(step_folder_of(path), {}); }

struct CheckpointList::Known {
  FileVersion manifest;
  CheckpointEntry entry;
};

CheckpointList::CheckpointList(fs::path root) : root_(std::move(root)) {}

CheckpointList::~CheckpointList() = default;

std::vector<CheckpointEntry> CheckpointList::read() {
  std::vector<CheckpointEntry> entries;
  std::error_code error;
  if (!fs::exists(root_, error) && !error) return entries;
  std::map<fs::path, Known> present;
  const auto entry_at = [&](const fs::path& directory) {
    const auto version = version_of(directory / manifest_file_name);  // before it is read: it may be replaced meanwhile
    const auto known = known_.find(directory);
    CheckpointEntry entry =
        version && known != known_.end() && known->second.manifest == *version ? known->second.entry : entry_of(directory);
    if (version && entry.readable()) present.insert({directory, {*version, entry}});
    entry.names = names_of(directory);
    return entry;
  };
  fs::directory_iterator iterator(root_, error);
  for (; !error && iterator != fs::directory_iterator(); iterator.increment(error)) {
    std::error_code ignored;
    if (!is_step_folder_name(iterator->path().filename()) ||
        !fs::is_directory(iterator->symlink_status(ignored))) {
      continue;
    }
    entries.push_back(entry_at(iterator->path()));
  }
  if (error) throw message::cannot_read_file(root_, error.value());
  known_ = std::move(present);
  // The folder only makes the order of two equal states repeatable.
  const auto key = [](const CheckpointEntry& entry) {
    return std::tuple(entry.readable(), entry.step, entry.batches, entry.save_index, std::cref(entry.directory));
  };
  std::sort(entries.begin(), entries.end(),
            [&](const auto& left, const auto& right) { return key(left) > key(right); });
  return entries;
}

void CheckpointList::add(const fs::path& directory, const nlohmann::json& manifest) {
  if (const auto version = version_of(directory / manifest_file_name)) {
    known_.insert_or_assign(directory, Known{*version, entry_of(directory, manifest)});
  }
}

std::vector<CheckpointEntry> list_checkpoints(const fs::path& root) { return CheckpointList(root).read(); }

std::optional<LatestCheckpoint> read_latest_checkpoint(const fs::path& root, int rank,
                                                       const std::function<void(const std::string&)>& warn) {
  const auto entries = list_checkpoints(root);
  if (entries.empty()) return std::nullopt;
  std::vector<std::string> passed_over;
  const auto try_read = [&](const CheckpointEntry& entry) -> std::optional<LatestCheckpoint> {
    try {
      return LatestCheckpoint{entry.directory, read_checkpoint(entry.directory, rank)};
    } catch (const CheckpointError& error) {
      passed_over.push_back(message::checkpoint_passed_over(entry.directory, error.what()));
      warn(passed_over.back());
      return std::nullopt;
    }
  };
  // An unreadable manifest hides whether it is the newest, so these are reported whichever is taken.
  for (const auto& entry : entries) {
    if (!entry.readable()) try_read(entry);
  }
  for (const auto& entry : entries) {
    if (!entry.readable()) break;
    if (auto latest = try_read(entry)) return latest;
  }
  throw message::no_valid_checkpoint(root, passed_over);
}

}  // namespace lockstep
