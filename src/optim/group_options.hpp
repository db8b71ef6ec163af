// What the options of all our optimizers have in common: one set for each group, checked.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/messages.hpp"
#include "lockstep/optim/parameter_groups.hpp"

namespace lockstep {

/// The options of each group. Errors: ConfigError `unknown-group`, `invalid-settings` for a rate given twice.
template <class Options>
std::vector<Options> options_of_groups(const ParameterGroups& groups, const Options& options,
                                       const std::map<std::string, Options>& of_groups) {
  std::vector<std::string> names;
  std::vector<Options> result;
  std::vector<std::string> problems;
  for (const auto& group : groups) {
    const auto found = of_groups.find(group.name);
    names.push_back(group.name);
    result.push_back(found == of_groups.end() ? options : found->second);
    if (!group.lr) continue;
    if (found != of_groups.end()) problems.push_back(message::problem_two_rates(group.name));
    result.back().lr = *group.lr;
  }
  for (const auto& [name, own] : of_groups) {
    if (std::find(names.begin(), names.end(), name) == names.end()) throw message::unknown_group(name, names);
  }
  if (!problems.empty()) throw message::invalid_settings(problems);
  return result;
}

/// Collects what is wrong with the options of groups.
class OptionCheck {
 public:
  void not_negative(const std::string& group, const std::string& option, double value) {
    require(std::isfinite(value) && value >= 0, group, option, value, "a finite number from 0 up");
  }
  void below_one(const std::string& group, const std::string& option, double value) {
    require(value >= 0 && value < 1, group, option, value, "a number from 0 up and below 1");
  }
  void require(bool holds, const std::string& group, const std::string& option, double value,
               const std::string& allowed) {
    if (!holds) problems_.push_back(message::problem_optimizer_option(group, option, value, allowed));
  }
  void finish() const {
    if (!problems_.empty()) throw message::invalid_settings(problems_);
  }

 private:
  std::vector<std::string> problems_;
};

}  // namespace lockstep
