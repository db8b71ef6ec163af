#include "lockstep/config/train_config.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/saving_messages.hpp"

namespace lockstep {
namespace {

void check_interval(const char* name, const std::optional<Interval>& interval,
                    std::vector<std::string>& found) {
  if (interval && interval->every < 1) {
    found.push_back(
        fmt::format("{} is every {}: give at least 1, or std::nullopt for never.", name, interval->every));
  }
}

void check_untimed(const char* name, const std::optional<Interval>& interval, std::vector<std::string>& found) {
  if (interval && interval->timed()) found.push_back(message::problem_timed_interval(name, to_string(*interval)));
}

void check_monitor(const Monitor& monitor, std::vector<std::string>& found) {
  const auto slash = monitor.metric().find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == monitor.metric().size()) {
    found.push_back(
        fmt::format("monitor watches \"{}\": name a set and one of its metrics, for example "
                    "\"validation/loss\".",
                    monitor.metric()));
  }
  const MonitorOptions& options = monitor.options();
  if (options.patience && *options.patience < 1) {
    found.push_back(
        fmt::format("monitor.patience is {}: give at least 1 evaluation, or leave it out to never stop "
                    "early.",
                    *options.patience));
  }
  if (!std::isfinite(options.min_delta) || options.min_delta < 0) {
    found.push_back(
        fmt::format("monitor.min_delta is {}: give a finite number, 0 or more; which way is better is "
                    "said by direction.",
                    options.min_delta));
  }
  if (options.start_epoch < 0) {
    found.push_back(
        fmt::format("monitor.start_epoch is {}: give 0 or more completed epochs.", options.start_epoch));
  } else if (options.start_epoch > 0 && !options.patience) {
    found.push_back(
        fmt::format("monitor.start_epoch is {} but would be ignored without patience: set patience, or "
                    "leave start_epoch out.",
                    options.start_epoch));
  }
}

}  // namespace

std::vector<std::string> problems(const TrainConfig& config) {
  std::vector<std::string> found;
  if (!config.epochs && !config.max_steps) {
    found.emplace_back("neither epochs nor max_steps is set: give the number of epochs, of updates, or both.");
  }
  if (config.epochs && *config.epochs < 0) {
    found.push_back(
        fmt::format("epochs is {}: give at least 1, or 0 to evaluate without training.", *config.epochs));
  }
  if (config.max_steps && *config.max_steps < 1) {
    found.push_back(fmt::format("max_steps is {}: give at least 1 update, or leave it out for no limit.",
                                *config.max_steps));
  }
  if (config.log_every < 1) {
    found.push_back(fmt::format("log_every is {}: give at least 1 update.", config.log_every));
  }
  for (const auto& [name, limit] : {std::pair("limit_train_batches", config.limit_train_batches),
                                    std::pair("limit_evaluation_batches", config.limit_evaluation_batches)}) {
    if (!limit) continue;
    for (auto& problem : problems(name, *limit)) found.push_back(std::move(problem));
  }
  check_interval("evaluate_every", config.evaluate_every, found);
  check_interval("log_histograms_every", config.log_histograms_every, found);
  check_interval("check_ranks_every", config.check_ranks_every, found);
  check_interval("checkpoint_every", config.checkpoint_every, found);
  check_untimed("evaluate_every", config.evaluate_every, found);
  check_untimed("log_histograms_every", config.log_histograms_every, found);
  check_untimed("check_ranks_every", config.check_ranks_every, found);
  if (config.skip_busy_saves && !(config.background_saves && config.checkpoint_every)) {
    found.emplace_back(
        "skip_busy_saves is set but would be ignored: it needs background_saves and checkpoint_every; set them, or leave "
        "it out.");
  }
  if (config.keep_checkpoints && *config.keep_checkpoints < 1) {
    found.push_back(fmt::format("keep_checkpoints is {}: give at least 1, or leave it out to keep all.",
                                *config.keep_checkpoints));
  }
  for (const auto& [name, limit] :
       {std::pair("max_grad_norm", config.max_grad_norm), std::pair("max_grad_value", config.max_grad_value)}) {
    if (!limit || (std::isfinite(*limit) && *limit > 0)) continue;
    found.push_back(fmt::format("{} is {}: give a finite number above 0, or leave it out to clip nothing.", name, *limit));
  }
  if (!config.evaluate_every) {
    for (const auto& [name, set] : {std::pair("evaluate_first", config.evaluate_first),
                                    std::pair("evaluate_raw", config.evaluate_raw),
                                    std::pair("limit_evaluation_batches", config.limit_evaluation_batches.has_value())}) {
      if (!set) continue;
      found.push_back(fmt::format("{} is set but would be ignored, as evaluate_every is unset: set evaluate_every, or "
                                  "leave {} out.",
                                  name, name));
    }
  }
  if (config.restore_best && !config.monitor) {
    found.emplace_back(
        "restore_best is set but no monitor says which weights are the best: set monitor, or leave restore_best out.");
  }
  if (config.monitor) {
    check_monitor(*config.monitor, found);
    if (!config.evaluate_every) {
      found.push_back(
          fmt::format("monitor watches \"{}\" but evaluate_every is unset, so it never gets a value: set "
                      "evaluate_every, or leave monitor out.",
                      config.monitor->metric()));
    }
  }
  return found;
}

}  // namespace lockstep
