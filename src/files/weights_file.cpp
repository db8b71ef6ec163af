#include "lockstep/files/weights_file.hpp"

#include <algorithm>
#include <random>
#include <set>
#include <system_error>

#include "base/file_messages.hpp"
#include "base/posix_file.hpp"
#include "files/checkpoint.hpp"
#include "files/checkpoint_layout.hpp"
#include "files/pt_file.hpp"
#include "files/weights_at.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/module_state.hpp"
#include "lockstep/tensors/safetensors.hpp"
#include "tensors/copy_by_name.hpp"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

bool begins_with_any(const std::string& name, const std::vector<std::string>& beginnings) {
  return std::any_of(beginnings.begin(), beginnings.end(),
                     [&](const std::string& beginning) { return name.starts_with(beginning); });
}

/// Renames, and tells which rules were of use.
std::string renamed(const std::string& name, const std::map<std::string, std::string>& rules,
                    std::set<std::string>& used) {
  const std::pair<const std::string, std::string>* best = nullptr;
  for (const auto& rule : rules) {
    if (name.starts_with(rule.first) && (!best || rule.first.size() > best->first.size())) best = &rule;
  }
  if (!best) return name;
  used.insert(best->first);
  return best->second + name.substr(best->first.size());
}

/// A first part of all names, "module." say, without which the names of the file would be those of the module; or the
/// other way round. Empty: neither helps.
std::string superfluous_beginning(const std::vector<std::string>& longer, const std::set<std::string>& shorter) {
  if (longer.empty()) return {};
  const std::string beginning = longer.front().substr(0, longer.front().find('.') + 1);
  const bool helps = !beginning.empty() && std::all_of(longer.begin(), longer.end(), [&](const std::string& name) {
    return name.starts_with(beginning) && shorter.contains(name.substr(beginning.size()));
  });
  return helps ? beginning : std::string();
}

std::vector<std::string> probably_meant(const std::vector<std::string>& left_over,
                                        const std::vector<std::string>& missing) {
  std::vector<std::string> hints;
  const auto as_set = [](const std::vector<std::string>& names) { return std::set(names.begin(), names.end()); };
  if (const auto more = superfluous_beginning(left_over, as_set(missing)); !more.empty()) {
    hints.push_back(message::hint_rename(more, ""));
  } else if (const auto less = superfluous_beginning(missing, as_set(left_over)); !less.empty()) {
    hints.push_back(message::hint_rename("", less));
  }
  return hints;
}

}  // namespace

void save_weights(const fs::path& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata) {
  const auto extension = path.extension();
  if (extension != ".safetensors" && extension != ".pt") throw message::unknown_weights_format(path);
  if (extension == ".pt" && !metadata.empty()) throw message::no_place_for_metadata(path);
  if (path.has_parent_path()) create_directories_durably(path.parent_path());
  // Not the process id: on a shared directory another machine may use the same one.
  const fs::path temporary = path.parent_path() / (".tmp-" + path.filename().string() + "-" +
                                                   std::to_string(std::random_device()()));
  if (extension == ".pt") {
    write_pt(temporary, tensors);
  } else {
    write_safetensors(temporary, {tensors, metadata});
  }
  try {
    rename_durably(temporary, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

NamedTensors read_weights(const fs::path& path) {
  if (path.extension() != ".safetensors") throw message::unknown_weights_format(path);
  return read_safetensors(path).tensors;
}

NamedTensors weights_at(const fs::path& path, Weights which) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return read_weights(path);
  NamedTensors tensors = read_checkpoint_file(path, which == Weights::raw ? model_file_name : ema_file_name);
  if (tensors.empty() && which != Weights::raw) throw message::no_averages_in(path);
  return tensors;
}

LoadedWeights load_weights(torch::nn::Module& module, const fs::path& path, const LoadWeightsOptions& options) {
  std::map<std::string, std::pair<std::string, at::Tensor>> given;  // by the name in the module
  std::set<std::string> used_rules;
  std::vector<std::string> problems;
  for (auto& [name, tensor] : weights_at(path, options.weights)) {
    const std::string own_name = renamed(name, options.rename, used_rules);
    const auto [place, is_new] = given.emplace(own_name, std::pair(name, tensor));
    if (!is_new) problems.push_back(message::problem_renamed_twice(place->second.first, name, own_name));
  }
  for (const auto& rule : options.rename) {
    if (!used_rules.contains(rule.first)) problems.push_back(message::problem_unused_rename(rule.first));
  }

  LoadedWeights result;
  const NamedTensors own = module_state(module);
  NamedTensors to_load;
  for (const auto& [name, tensor] : own) {
    const auto found = given.find(name);
    const bool skipped = begins_with_any(name, options.skip);
    if (found == given.end()) {
      if (!skipped) result.missing.push_back(name);
      continue;
    }
    const auto [file_name, value] = found->second;
    given.erase(found);
    if (skipped) continue;
    if (value.sizes() != tensor.sizes()) {
      problems.push_back(message::problem_shape(name, value.sizes().vec(), tensor.sizes().vec()));
    } else if (value.scalar_type() != tensor.scalar_type() &&
               !(value.is_floating_point() && tensor.is_floating_point())) {
      problems.push_back(message::problem_type(name, c10::toString(value.scalar_type()),
                                               c10::toString(tensor.scalar_type())));
    } else {
      to_load.emplace_back(name, value);
      result.loaded.push_back(name);
    }
  }
  for (const auto& left : given) {
    if (!begins_with_any(left.first, options.skip)) result.left_over.push_back(left.second.first);
  }
  for (const auto& beginning : options.skip) {
    const auto concerns = [&](const auto& tensor) { return tensor.first.starts_with(beginning); };
    if (std::none_of(own.begin(), own.end(), concerns) && std::none_of(given.begin(), given.end(), concerns)) {
      problems.push_back(message::problem_unused_skip(beginning));
    }
  }

  std::vector<std::string> hints;
  if (options.strict) {
    hints = probably_meant(result.left_over, result.missing);
    for (const auto& name : result.missing) problems.push_back(message::problem_missing_weight(name));
    for (const auto& name : result.left_over) problems.push_back(message::problem_left_over_weight(name));
  } else if (result.loaded.empty() && problems.empty()) {
    hints = probably_meant(result.left_over, result.missing);
    problems.push_back(message::problem_nothing_fits());
  }
  if (!problems.empty()) throw message::weights_do_not_fit(path, problems, hints);

  copy_by_name(to_load, own);
  return result;
}

}  // namespace lockstep
