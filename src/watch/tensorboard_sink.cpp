#include "watch/tensorboard_sink.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <string_view>
#include <vector>

#include "watch/event_file.hpp"
#include "watch/run_record.hpp"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// Viewers take a file by `tfevents` in its name, and read a folder's files in the order of their names.
constexpr std::string_view prefix = "events.out.tfevents.";
constexpr std::string_view suffix = ".lockstep";
constexpr const char* config_tag = "config";

std::vector<fs::path> own_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && name.ends_with(suffix)) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// A name that comes after those of the files there are, even if they are of the same second.
fs::path next_path(const fs::path& directory) {
  std::int64_t seconds = std::time(nullptr);
  for (const auto& file : own_files(directory)) {
    const std::string name = file.filename();
    std::int64_t taken = 0;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), taken);
    seconds = std::max(seconds, taken + 1);
  }
  return directory / fmt::format("{}{:010}.{}.{}{}", prefix, seconds, host_name(), ::getpid(), suffix);
}

bool is_before(const EventRecord& record, std::int64_t first_step) {
  if (record.tags.empty()) return true;
  // The configuration is written when a call begins, so that of a later call at the same step replaces it.
  const bool is_config = record.tags.front() == config_tag;
  return first_step > 0 && (is_config ? record.step < first_step : record.step <= first_step);
}

}  // namespace

TensorboardSink::TensorboardSink(const RunDirectory& directory) : directory_(directory) {}

void TensorboardSink::begin(const RunStart& start) {
  const std::int64_t first_step = start.plan.first_step;
  const bool goes_back = std::any_of(last_steps_.begin(), last_steps_.end(),
                                     [&](const auto& tag) { return tag.second > first_step; });
  if (goes_back || !files_are_known_) take_back(first_step);
  if (!is_new(config_tag, first_step)) return;
  append(text_record(static_cast<double>(std::time(nullptr)), first_step, config_tag, start.config));
  last_steps_[config_tag] = first_step;
}

void TensorboardSink::write(const LogEvent& event) {
  LogEvent fresh = event;
  std::erase_if(fresh.values, [&](const auto& value) { return !is_new(value.first, event.step); });
  std::erase_if(fresh.histograms, [&](const auto& histogram) { return !is_new(histogram.name, event.step); });
  if (fresh.values.empty() && fresh.histograms.empty()) return;
  append(event_record(fresh));
  for (const auto& value : fresh.values) last_steps_[value.first] = event.step;
  for (const auto& histogram : fresh.histograms) last_steps_[histogram.name] = event.step;
}

void TensorboardSink::finish() {
  if (file_) file_->sync();
}

bool TensorboardSink::is_new(const std::string& tag, std::int64_t step) const {
  const auto last = last_steps_.find(tag);
  return last == last_steps_.end() || last->second < step;
}

void TensorboardSink::append(std::string record) {
  if (!file_) {
    if (path_.empty()) path_ = next_path(directory_.path());
    file_.emplace(path_);
    has_version_ = false;
  }
  if (!has_version_) record.insert(0, version_record(static_cast<double>(std::time(nullptr))));
  file_->append(record);
  has_version_ = true;
}

void TensorboardSink::take_back(std::int64_t first_step) {
  file_.reset();
  path_ = next_path(directory_.path());
  last_steps_.clear();
  for (const auto& path : own_files(directory_.path())) {
    const std::string bytes = InputFile(path).text();
    std::string kept;
    bool has_summary = false;
    for (std::string_view rest = bytes; const auto record = read_record(rest);) {
      rest.remove_prefix(record->bytes.size());
      if (!is_before(*record, first_step)) continue;
      kept += record->bytes;
      has_summary |= !record->tags.empty();
      for (const auto& tag : record->tags) {
        auto& last = last_steps_.try_emplace(tag, record->step).first->second;
        last = std::max(last, record->step);
      }
    }
    if (!has_summary) {
      fs::remove(path);
    } else if (kept.size() != bytes.size()) {
      directory_.replace_file(path.filename(), kept);
    }
  }
  files_are_known_ = true;
}

}  // namespace lockstep
