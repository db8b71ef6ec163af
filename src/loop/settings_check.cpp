#include "loop/settings_check.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/loop_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "loop/metric_names.hpp"

namespace lockstep {
namespace {

/// Whether a metric can get a value at all.
void check_watched(const std::string& who, const std::string& metric, const TrainConfig& config,
                   const TrainerFacts& facts, std::vector<std::string>& found) {
  if (!facts.evaluation_sets || !config.evaluate_every) {
    found.push_back(message::problem_watch_without_evaluation(who, metric));
    return;
  }
  const auto& sets = *facts.evaluation_sets;
  if (std::find(sets.begin(), sets.end(), set_of(metric)) == sets.end()) {
    found.push_back(message::problem_watched_set(who, metric, sets));
  } else if (is_raw(metric) && !config.evaluate_raw) {
    found.push_back(message::problem_watched_raw(who, metric));
  }
}

}  // namespace

std::vector<std::string> problems(const TrainConfig& config, const TrainOptions& options, const TrainerFacts& facts) {
  auto found = problems(config);
  if (config.monitor) check_watched("the monitor", config.monitor->metric(), config, facts, found);
  if (facts.scheduled_metric) check_watched("the schedule", *facts.scheduled_metric, config, facts, found);
  if (config.late_finite_check) {
    for (const auto& what : facts.obstacles_to_late_updates) {
      found.push_back(message::problem_late_finite_check(what));
    }
  }
  if (!facts.evaluation_sets) {
    for (const auto& [name, set] :
         {std::pair("evaluate_first", config.evaluate_first), std::pair("evaluate_raw", config.evaluate_raw),
          std::pair("limit_evaluation_batches", config.limit_evaluation_batches.has_value()),
          std::pair("epochs = 0", config.epochs == 0)}) {
      if (set) found.push_back(message::problem_without_evaluator(name));
    }
  } else if (config.evaluate_raw && !facts.averages) {
    found.push_back(message::problem_evaluate_raw());
  }
  if (options.checkpoint_dir.empty()) {
    for (const auto& [name, set] :
         {std::pair("keep_checkpoints", config.keep_checkpoints.has_value()),
          std::pair("skip_busy_saves", config.skip_busy_saves),
          std::pair("fail_on_save_error", config.fail_on_save_error),
          std::pair("metadata", !options.metadata.empty()), std::pair("save_now", options.save_now != nullptr),
          std::pair("resume_from = latest", options.resume_from && !options.resume_from->path())}) {
      if (set) found.push_back(message::problem_without_checkpoint_dir(name));
    }
  }
  if (!options.settings.empty() && !nlohmann::json::accept(options.settings)) {
    found.push_back(message::problem_settings_text());
  }
  if (options.keep_schedule && !(facts.has_schedule && options.resume_from)) {
    found.push_back(message::problem_keep_schedule());
  }
  return found;
}

}  // namespace lockstep
