// What is trained: the model and, if there is one, the objective.
#pragma once

#include <string_view>
#include <vector>

#include "lockstep/data/batch.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// The model's tensors keep their names; the objective's begin with this.
inline constexpr std::string_view objective_prefix = "objective.";

/// A model and an objective that are moved, switched to train mode and saved together.
///
/// Ownership: refers to both. Errors: ConfigError `invalid-settings` where the model has a part of the objective's name.
class TrainedModules {
 public:
  /// `objective` null: there is none.
  TrainedModules(torch::nn::Module& model, torch::nn::Module* objective, const Placement& placement);

  [[nodiscard]] torch::nn::Module& model() const { return model_; }
  [[nodiscard]] torch::nn::Module* objective() const { return objective_; }

  /// All parameters, also frozen ones.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  /// All buffers that are there.
  [[nodiscard]] const std::vector<at::Tensor>& buffers() const { return buffers_; }

  /// Parameters and buffers of the model by its own names, of the objective by prefixed ones; they share storage.
  [[nodiscard]] NamedTensors model_state() const;
  [[nodiscard]] NamedTensors objective_state() const;

  void train();

 private:
  torch::nn::Module& model_;
  torch::nn::Module* objective_;
  NamedTensors parameters_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace lockstep
