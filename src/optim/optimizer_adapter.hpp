// What the library needs of an optimizer, over any torch::optim::Optimizer.
#pragma once

#include <torch/optim/optimizer.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// An optimizer's whole state, keyed by parameter name: never by address or position.
struct OptimizerState {
  /// {"kind", "groups": [{"name", "base_lr", "options": {...}, "parameters": [...]}], "state": {parameter: {...}}}; the
  /// last holds what is not a tensor, such as the step of each parameter.
  nlohmann::json description;
  NamedTensors tensors;  ///< `<parameter>/<field>`, for example `conv1.weight/exp_avg`
};

/// Steps a Torch optimizer, sets its rates, and saves and restores its state by name.
///
/// Ownership: refers to the optimizer, which outlives it. Errors: ConfigError `foreign-parameter`,
/// `duplicate-parameter`, `no-trainable-parameter`.
class OptimizerAdapter {
 public:
  OptimizerAdapter(torch::optim::Optimizer& optimizer, const NamedTensors& model_parameters);

  /// The class of the optimizer, for example `AdamW`.
  [[nodiscard]] std::string kind() const;

  /// What it trains: the parameters of all groups, each once.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  /// The gradients that are there now.
  [[nodiscard]] std::vector<at::Tensor> gradients() const;

  void step() { optimizer_.step(); }

  [[nodiscard]] const std::vector<std::string>& group_names() const { return group_names_; }
  [[nodiscard]] double base_lr(std::size_t group) const { return base_lrs_[group]; }
  void set_base_lr(std::size_t group, double lr) { base_lrs_[group] = lr; }
  /// Sets every group's rate to its base times `factor`.
  void set_rates(double factor);
  [[nodiscard]] double rate(std::size_t group) const;
  void set_rate(std::size_t group, double rate);

  /// Errors: CheckpointError `optimizer-state-not-saved` for a state that is no tensor, number, flag or tuple of them.
  [[nodiscard]] OptimizerState state() const;
  /// What of `saved` does not fit this optimizer, a sentence each; empty: load() will work.
  [[nodiscard]] std::vector<std::string> misfits(const OptimizerState& saved) const;
  void load(const OptimizerState& saved);

 private:
  torch::optim::Optimizer& optimizer_;
  NamedTensors parameters_;
  std::vector<std::vector<std::string>> names_;  // of each group's parameters, in the group's order
  std::vector<std::string> group_names_;
  std::vector<double> base_lrs_;
};

}  // namespace lockstep
