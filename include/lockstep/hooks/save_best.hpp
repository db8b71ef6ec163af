// Keeps a file of the best weights while a run is under way.
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "lockstep/config/monitor.hpp"
#include "lockstep/loop/hooks.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Writes the weights that were evaluated, averaged ones too, each time the metric has improved. The file is
/// complete at any time; load_weights() reads it back.
///
/// With TrainConfig::monitor the Trainer has the best weights itself: as the checkpoint `best`, for
/// Weights::best, and back in the model with restore_best. This is for programs that take them up meanwhile,
/// or by another metric.
///
/// Ownership: refers to the module. The path is save_weights()'s. Errors: ConfigError `unknown-metric` in a
/// run; those of save_weights().
class SaveBest final : public Hook {
 public:
  SaveBest(const torch::nn::Module& module, std::filesystem::path path, Monitor monitor)
      : module_(module), path_(std::move(path)), monitor_(std::move(monitor)) {}

  void evaluation_end(Run& run, Weights weights, const EvaluationResults& results) override;

  [[nodiscard]] std::string name() const;
  [[nodiscard]] NamedTensors state() const;
  void load_state(const NamedTensors& state);

 private:
  const torch::nn::Module& module_;
  std::filesystem::path path_;
  Monitor monitor_;
  TrainState judged_;  // what the Monitor keeps there
};

}  // namespace lockstep
