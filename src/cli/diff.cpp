#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/contents.hpp"
#include "cli/source.hpp"
#include "cli/subcommand.hpp"
#include "cli/text.hpp"
#include "files/checkpoint_layout.hpp"
#include "tensors/safetensors_format.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::string first;
  std::string second;
};

/// What was found, to be printed once all of it was read.
struct Findings {
  std::ostringstream text;
  bool different = false;
  std::uint64_t tensors = 0;
};

// ---- what is no tensor ----

std::map<std::string, std::string> compared_leaves(nlohmann::json manifest) {
  // These differ between two saves of one state.
  for (const char* name : {"run_id", "save_index", "files"}) manifest.erase(name);
  const auto found = leaves(manifest);
  return {found.begin(), found.end()};
}

std::string value_of(const std::map<std::string, std::string>& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? "absent" : found->second;
}

void compare_manifests(const Contents& first, const Contents& second, Findings& findings) {
  const auto a = compared_leaves(first.manifest);
  const auto b = compared_leaves(second.manifest);
  std::set<std::string> keys;
  for (const auto* values : {&a, &b}) {
    for (const auto& value : *values) keys.insert(value.first);
  }
  using enum Table::Align;
  Table table({left, left, left});
  bool different = false;
  for (const auto& key : keys) {
    if (value_of(a, key) == value_of(b, key)) continue;
    table.add({key, value_of(a, key), value_of(b, key)});
    different = true;
  }
  if (!different) return;
  findings.different = true;
  findings.text << "\nmanifest\n";
  table.print(findings.text, "  ");
}

// ---- tensors ----

std::string kind_of(const at::Tensor& tensor) {
  return std::string(safetensors_dtype(tensor.scalar_type())) + " " + shape_text(tensor.sizes().vec());
}

struct Distance {
  std::int64_t values = 0;  ///< that differ
  double largest = 0;
  double norm = 0;
};

Distance distance(const at::Tensor& a, const at::Tensor& b) {
  constexpr std::int64_t piece_size = 1 << 20;  // of doubles in memory at a time
  const auto pieces_a = a.flatten().split(piece_size), pieces_b = b.flatten().split(piece_size);
  Distance result;
  double squares = 0;
  for (std::size_t i = 0; i < pieces_a.size(); ++i) {
    const at::Tensor difference = pieces_a[i].to(at::kDouble).sub(pieces_b[i].to(at::kDouble));
    result.values += difference.ne(0).sum().item<std::int64_t>();
    // A maximum that a NaN takes part in is NaN.
    const double largest = difference.abs().max().item<double>();
    if (!(largest <= result.largest)) result.largest = largest;
    squares += difference.dot(difference).item<double>();
  }
  result.norm = std::sqrt(squares);
  return result;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

void compare_files(const std::string& file, const NamedTensors& first, const NamedTensors& second, Findings& findings) {
  std::map<std::string, at::Tensor> left_over(second.begin(), second.end());
  using enum Table::Align;
  Table table({right, right, right, right, left});
  table.add({"differing", "largest", "distance", "relative", "name"});
  std::uint64_t different = 0;
  const auto add = [&](std::vector<std::string> row) {
    ++different;
    table.add(std::move(row));
  };
  for (const auto& [name, a] : first) {
    ++findings.tensors;
    const auto found = left_over.find(name);
    if (found == left_over.end()) {
      add({"only in A", "", "", "", printable(name)});
      continue;
    }
    const at::Tensor b = found->second;
    left_over.erase(found);
    if (kind_of(a) != kind_of(b)) {
      add({"kind", "", "", "", printable(name) + ": " + kind_of(a) + ", " + kind_of(b)});
    } else if (!same_bits(a, b)) {
      const Distance found_distance = distance(a, b);
      const double scale = std::max(norm(a), norm(b));
      add({std::to_string(found_distance.values), number_text(found_distance.largest), number_text(found_distance.norm),
           number_text(scale == 0 ? 0 : found_distance.norm / scale), printable(name)});
    }
  }
  for (const auto& only : left_over) {
    ++findings.tensors;
    add({"only in B", "", "", "", printable(only.first)});
  }
  if (different == 0) return;
  findings.different = true;
  findings.text << '\n' << file << ": a difference in " << count_text(different, "tensor") << '\n';
  table.print(findings.text, "  ");
}

// ---- both ----

/// Of two checkpoints all, of anything else what both can hold: the model's weights.
std::set<std::string> compared_files(const Contents& first, const Contents& second) {
  if (first.manifest.is_null() || second.manifest.is_null()) return {model_file_name};
  std::set<std::string> files(first.files.begin(), first.files.end());
  files.insert(second.files.begin(), second.files.end());
  return files;
}

/// Returns whether they are equal.
bool diff(const Options& options) {
  const Contents first = open_contents(options.first);
  const Contents second = open_contents(options.second);
  Findings findings;
  if (!first.manifest.is_null() && !second.manifest.is_null()) compare_manifests(first, second, findings);
  for (const auto& file : compared_files(first, second)) {
    compare_files(file, read_tensors(first, file), read_tensors(second, file), findings);
  }
  std::cout << "A  " << first.path.string() << "\nB  " << second.path.string() << '\n' << findings.text.str();
  if (!findings.different) std::cout << "\nequal: " << count_text(findings.tensors, "tensor") << ", bit for bit\n";
  return !findings.different;
}

}  // namespace

void add_diff(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<Options>();
  auto* const command = add_file_command(
      app, "diff",
      "Compares state, settings and tensors. Of a tensor that differs in any bit it\n"
      "shows how many values differ, the largest difference, the Euclidean distance,\n"
      "and that divided by the larger norm. Run id and save count may differ. Beside a\n"
      "weights file only the checkpoint's raw weights are compared.\n\n"
      "Exit code: 0 equal, 1 different, 2 an error.\n\n"
      "Examples:\n"
      "  lockstep diff runs/a/checkpoints/last runs/b/checkpoints/last\n"
      "  lockstep diff runs/a/checkpoints/best model.safetensors");
  command->add_option("A", options->first, path_help)->required();
  command->add_option("B", options->second, "The other one")->required();
  command->callback([options, &exit_code] {
    if (!diff(*options)) exit_code = exit_no;
  });
}

}  // namespace lockstep::cli
