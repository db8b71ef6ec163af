// What may lie on the disk after a power cut: a small model of POSIX file systems.
//
// The bytes of a file are certain once the file was synced after they were written, the entries of a
// directory once it was synced after they changed. Whatever was not synced may have reached the disk or
// not: in any combination, in any order, of a write all bytes, its first half, or its length alone. A
// rename is one change.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "faults/file_recorder.hpp"

namespace lockstep::test {

/// What became of an operation.
enum class Fate { lost, whole, half, length_alone };
using Fates = std::vector<Fate>;

/// The folder after a power cut.
class Disk {
 public:
  /// `fates` of all operations of the recording, or of the first ones; the others are lost.
  Disk(const Recording& recording, const Fates& fates)
      : recording_(recording), entries_(recording.nodes.size()), bytes_(recording.nodes.size()) {
    for (std::size_t i = 0; i < fates.size(); ++i) {
      if (fates[i] != Fate::lost) apply(recording.operations[i], fates[i]);
    }
  }

  /// The same for equal folders.
  [[nodiscard]] std::string text() const {
    std::string text;
    describe(0, text);
    return text;
  }

  /// Makes `folder`, which must not exist.
  void make(const std::filesystem::path& folder) const { make(0, folder); }

 private:
  void apply(const Operation& operation, Fate fate) {
    const auto node = static_cast<std::size_t>(operation.node);
    for (const auto& [name, target] : operation.entries) {
      if (target == no_node) {
        entries_[node].erase(name);
      } else {
        entries_[node][name] = target;
      }
    }
    if (operation.kind != Operation::Kind::write) return;
    auto& bytes = bytes_[node];
    bytes.resize(std::max(bytes.size(), operation.offset + operation.bytes.size()));
    const auto part = fate == Fate::whole  ? operation.bytes.size()
                      : fate == Fate::half ? operation.bytes.size() / 2
                                           : 0;
    bytes.replace(operation.offset, part, operation.bytes, 0, part);
  }

  void describe(int node, std::string& text) const {
    const auto index = static_cast<std::size_t>(node);
    switch (recording_.nodes[index].kind) {
      case Node::Kind::file:
        text += "file " + std::to_string(bytes_[index].size()) + " " + bytes_[index];
        return;
      case Node::Kind::link:
        text += "link " + recording_.nodes[index].target;
        return;
      case Node::Kind::directory:
        text += "{";
        for (const auto& [name, child] : entries_[index]) {
          text += name + ": ";
          describe(child, text);
          text += "\n";
        }
        text += "}";
    }
  }

  void make(int node, const std::filesystem::path& path) const {
    const auto index = static_cast<std::size_t>(node);
    switch (recording_.nodes[index].kind) {
      case Node::Kind::file: {
        std::ofstream file(path, std::ios::binary);
        file.write(bytes_[index].data(), static_cast<std::streamsize>(bytes_[index].size()));
        if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
        return;
      }
      case Node::Kind::link:
        std::filesystem::create_symlink(recording_.nodes[index].target, path);
        return;
      case Node::Kind::directory:
        std::filesystem::create_directory(path);
        for (const auto& [name, child] : entries_[index]) make(child, path / name);
    }
  }

  const Recording& recording_;
  std::vector<std::map<std::string, int>> entries_;
  std::vector<std::string> bytes_;
};

/// As Disk::text() of what lies in `folder`.
inline std::string text_of_folder(const std::filesystem::path& folder) {
  const auto entry_text = [](const std::filesystem::directory_entry& entry) -> std::string {
    if (entry.is_symlink()) return "link " + std::filesystem::read_symlink(entry.path()).string();
    if (entry.is_directory()) return text_of_folder(entry.path());
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    return "file " + std::to_string(bytes.size()) + " " + bytes;
  };
  std::map<std::string, std::string> entries;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    entries[entry.path().filename()] = entry_text(entry);
  }
  std::string text = "{";
  for (const auto& [name, content] : entries) text += name + ": " + content + "\n";
  return text + "}";
}

/// The operations among the first `count` that a power cut may undo.
inline std::vector<std::size_t> uncertain(const Recording& recording, std::size_t count) {
  std::set<int> synced;
  std::vector<std::size_t> result;
  for (std::size_t i = count; i-- > 0;) {
    const auto& operation = recording.operations[i];
    if (operation.kind == Operation::Kind::sync) {
      synced.insert(operation.node);
    } else if (!synced.contains(operation.node)) {
      result.push_back(i);
    }
  }
  std::reverse(result.begin(), result.end());
  return result;
}

/// Calls `visit` with each way the first `count` operations may have ended: all combinations of lost and
/// whole where there are few, else the extremes, each operation alone lost and alone done, every beginning
/// of what each directory and file did, and `samples` combinations at random; and `samples` with torn
/// writes.
inline void each_outcome(const Recording& recording, std::size_t count, std::size_t samples,
                         std::uint64_t seed, const std::function<void(const Fates&)>& visit) {
  const auto open = uncertain(recording, count);
  std::mt19937_64 random(seed * 1'000'003 + count);
  Fates fates(count, Fate::whole);
  const auto visit_with = [&](const auto& fate_of) {
    for (std::size_t i = 0; i < open.size(); ++i) fates[open[i]] = fate_of(i);
    visit(fates);
  };
  const auto either = [](bool done) { return done ? Fate::whole : Fate::lost; };

  if (open.size() < 63 && (std::uint64_t{1} << open.size()) <= samples) {
    for (std::uint64_t subset = 0; subset < std::uint64_t{1} << open.size(); ++subset) {
      visit_with([&](std::size_t i) { return either((subset >> i) & 1); });
    }
  } else {
    visit_with([&](std::size_t) { return Fate::lost; });
    visit_with([&](std::size_t) { return Fate::whole; });
    for (std::size_t other = 0; other < open.size(); ++other) {
      visit_with([&](std::size_t i) { return either(i == other); });
      visit_with([&](std::size_t i) { return either(i != other); });
      const auto node = [&](std::size_t i) { return recording.operations[open[i]].node; };
      for (const bool others : {false, true}) {
        visit_with([&](std::size_t i) { return either(node(i) == node(other) ? i <= other : others); });
      }
    }
    for (std::size_t sample = 0; sample < samples; ++sample) {
      visit_with([&](std::size_t) { return either(random() % 2); });
    }
  }
  const bool any_write = std::any_of(open.begin(), open.end(), [&](std::size_t i) {
    return recording.operations[i].kind == Operation::Kind::write;
  });
  for (std::size_t sample = 0; any_write && sample < samples; ++sample) {
    visit_with([&](std::size_t) { return static_cast<Fate>(random() % 4); });
  }
}

}  // namespace lockstep::test
