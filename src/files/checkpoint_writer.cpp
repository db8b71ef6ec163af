#include "files/checkpoint_writer.hpp"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <regex>
#include <system_error>

#include "base/file_messages.hpp"
#include "base/posix_file.hpp"
#include "files/checkpoint_layout.hpp"
#include "files/retention.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/safetensors.hpp"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

// What CheckpointWriter::Impl::temporary_path() makes, and nothing else.
bool is_left_over(const std::string& name) {
  static const std::regex pattern(
      "\\.tmp-((retired-)?step-[0-9]{8,19}(-[0-9]{1,9})?|link-(last|best|final))-[0-9]{1,10}-[0-9]{1,10}");
  return std::regex_match(name, pattern);
}

void remove_left_overs(const fs::path& root) {
  std::error_code error;
  std::vector<fs::path> left_overs;
  fs::directory_iterator iterator(root, error);
  for (; !error && iterator != fs::directory_iterator(); iterator.increment(error)) {
    if (is_left_over(iterator->path().filename())) left_overs.push_back(iterator->path());
  }
  if (error) throw message::cannot_read_file(root, error.value());
  for (const auto& path : left_overs) remove_tree(path);
}

// Removes what is still at a temporary path when a save or a naming ends.
class TemporaryPath {
 public:
  explicit TemporaryPath(fs::path path) : path_(std::move(path)) {}
  ~TemporaryPath() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryPath(const TemporaryPath&) = delete;
  TemporaryPath& operator=(const TemporaryPath&) = delete;

  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

fs::path existing_directory(const fs::path& root) {
  // Absolute, since the program may change its working directory while it trains.
  const fs::path absolute = fs::absolute(root).lexically_normal();
  const fs::path path = absolute.has_filename() ? absolute : absolute.parent_path();
  create_directories_durably(path);
  return path;
}

}  // namespace

struct CheckpointWriter::Impl {
  explicit Impl(const fs::path& given)
      : root(existing_directory(given)), present(root), lock(root, ".lock", message::checkpoint_directory_in_use) {
    // A lock that nobody had before proves nothing about who is dead: its file may have been removed by hand.
    if (lock.had_file()) remove_left_overs(root);
  }

  void require_lock() const {
    if (!lock.is_held()) throw message::checkpoint_lock_lost(root);
  }

  fs::path temporary_path(const std::string& purpose) {
    return root /
           (".tmp-" + purpose + "-" + std::to_string(::getpid()) + "-" + std::to_string(++temporaries));
  }

  fs::path root;
  CheckpointList present;
  DirectoryLock lock;
  std::int64_t temporaries = 0;
  fs::path saved;  // the newest folder that save() returned
};

CheckpointWriter::CheckpointWriter(fs::path root) : impl_(std::make_unique<Impl>(root)) {}

CheckpointWriter::~CheckpointWriter() = default;

const fs::path& CheckpointWriter::root() const { return impl_->root; }

fs::path CheckpointWriter::folder_of(std::int64_t step) const {
  const std::string plain = step_folder_name(step);
  fs::path folder = impl_->root / plain;
  for (int repetition = 2; fs::exists(fs::symlink_status(folder)); ++repetition) {
    folder = impl_->root / (plain + "-" + std::to_string(repetition));
  }
  return folder;
}

fs::path CheckpointWriter::save(const Checkpoint& checkpoint) {
  impl_->require_lock();
  const std::int64_t step = checkpoint.manifest.at("state").at("step");
  const TemporaryPath folder(impl_->temporary_path(step_folder_name(step)));
  std::error_code error;
  fs::create_directory(folder.path(), error);
  if (error) throw message::cannot_create_directory(folder.path(), error.value());

  nlohmann::json files = nlohmann::json::object();
  const auto write = [&](const std::string& name, const NamedTensors& tensors) {
    files[name] = digest_to_json(write_safetensors(folder.path() / name, {tensors}));
  };
  write(model_file_name, checkpoint.model);
  if (!checkpoint.ema.empty()) write(ema_file_name, checkpoint.ema);
  if (!checkpoint.optimizer.empty()) write(optimizer_file_name, checkpoint.optimizer);
  if (!checkpoint.objective.empty()) write(objective_file_name, checkpoint.objective);
  if (!checkpoint.registered.empty()) write(registered_file_name, checkpoint.registered);
  write(rank_file_name(0), checkpoint.rank);
  for (std::size_t i = 0; i < checkpoint.other_ranks.size(); ++i) {
    const auto name = rank_file_name(static_cast<int>(i) + 1);
    OutputFile file(folder.path() / name);
    file.write(checkpoint.other_ranks[i].data(), checkpoint.other_ranks[i].size());
    file.finish();
    files[name] = digest_to_json(digest_of(checkpoint.other_ranks[i]));
  }

  nlohmann::json manifest = checkpoint.manifest;
  manifest["format_version"] = checkpoint_format_version;
  manifest["files"] = std::move(files);
  const std::string text = manifest_text(manifest);
  OutputFile output(folder.path() / manifest_file_name);
  output.write(text.data(), text.size());
  output.finish();

  sync_directory(folder.path());
  impl_->require_lock();
  const fs::path destination = folder_of(step);
  rename_durably(folder.path(), destination);
  impl_->saved = destination;
  impl_->present.add(destination, manifest);
  return destination;
}

void CheckpointWriter::name(const std::string& name, const fs::path& directory) {
  impl_->require_lock();
  const fs::path target = directory.filename();
  assert(std::find(checkpoint_names.begin(), checkpoint_names.end(), name) != checkpoint_names.end());
  assert(is_step_folder_name(target) && fs::is_directory(impl_->root / target));
  const TemporaryPath link(impl_->temporary_path("link-" + name));
  std::error_code error;
  fs::create_directory_symlink(target, link.path(), error);
  if (error) throw message::cannot_write_file(link.path(), error.value());
  rename_durably(link.path(), impl_->root / name);
}

void CheckpointWriter::remove_name(const std::string& name) {
  impl_->require_lock();
  const fs::path link = impl_->root / name;
  if (!fs::is_symlink(fs::symlink_status(link))) return;
  remove_tree(link);
  sync_directory(impl_->root);
}

std::vector<fs::path> CheckpointWriter::retire(std::int64_t keep, const std::string& run_id) {
  // What was just written stays, even if folders of an abandoned future of this run count as newer.
  auto superfluous = superfluous_checkpoints(impl_->present.read(), keep, run_id, impl_->saved);
  for (const auto& directory : superfluous) {
    impl_->require_lock();
    const TemporaryPath retired(impl_->temporary_path("retired-" + directory.filename().string()));
    rename_durably(directory, retired.path());
    remove_tree(retired.path());
  }
  return superfluous;
}

}  // namespace lockstep
