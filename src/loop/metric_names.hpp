// The names under which evaluations are logged and watched: `set/metric`, and `raw/set/metric` for raw weights that are
// evaluated beside averaged ones.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/messages.hpp"
#include "lockstep/loop/evaluator.hpp"

namespace lockstep {

using Values = std::vector<std::pair<std::string, double>>;

inline constexpr std::string_view raw_prefix = "raw/";

inline bool is_raw(std::string_view metric) { return metric.starts_with(raw_prefix); }

inline std::string set_of(std::string_view metric) {
  if (is_raw(metric)) metric.remove_prefix(raw_prefix.size());
  return std::string(metric.substr(0, metric.find('/')));
}

inline void append(Values& values, std::string_view prefix, const EvaluationResults& results) {
  for (const auto& [set, metrics] : results) {
    for (const auto& [name, value] : metrics) values.emplace_back(std::string(prefix) + set + "/" + name, value);
  }
}

/// Errors: ConfigError `unknown-metric`.
inline double value_of(const std::string& metric, const Values& values) {
  for (const auto& [name, value] : values) {
    if (name == metric) return value;
  }
  throw message::unknown_metric(metric, values);
}

}  // namespace lockstep
