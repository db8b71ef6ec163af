// What is wrong with the settings of a train() call, given what the Trainer has.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/train_config.hpp"
#include "lockstep/loop/train_options.hpp"

namespace lockstep {

/// What a Trainer has that its settings must agree with.
struct TrainerFacts {
  std::optional<std::vector<std::string>> evaluation_sets;  ///< unset: there is no Evaluator
  bool averages;
  bool has_schedule;
  std::optional<std::string> scheduled_metric;  ///< the metric that learning rates follow
  std::vector<std::string> obstacles_to_late_updates;  ///< see loop/late_update.hpp
};

/// Every mistake, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const TrainConfig& config, const TrainOptions& options, const TrainerFacts& facts);

}  // namespace lockstep
