// What the library needs of an optimizer, over any torch::optim::Optimizer and our own.
#pragma once

#include <torch/optim/optimizer.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.hpp"
#include "lockstep/optim/parameter_arena.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// An optimizer's whole state, keyed by parameter name: never by address or position.
struct OptimizerState {
  /// {"kind", "groups": [{"name", "base_lr", "options": {...}, "parameters": [...]}], "state": {parameter:
  /// {...}}}; the last holds what is not a tensor, such as the step of each parameter.
  nlohmann::json description;
  NamedTensors tensors;  ///< `<parameter>/<field>`, for example `conv1.weight/exp_avg`
};

/// Lays out an optimizer's parameters, steps it, sets its rates, and saves and restores its state by name.
///
/// Ownership: refers to the optimizer, which outlives it; owns the arena. Errors: ConfigError
/// `foreign-parameter`, `duplicate-parameter`, `no-trainable-parameter`, `parameter-not-flat`.
class OptimizerAdapter {
 public:
  OptimizerAdapter(torch::optim::Optimizer& optimizer, const NamedTensors& model_parameters,
                   ParameterLayout layout = ParameterLayout::flat);
  ~OptimizerAdapter();
  OptimizerAdapter(const OptimizerAdapter&) = delete;
  OptimizerAdapter& operator=(const OptimizerAdapter&) = delete;

  /// The class of the optimizer, for example `AdamW`.
  [[nodiscard]] std::string kind() const;

  /// What it trains: the parameters of all groups, each once.
  [[nodiscard]] const NamedTensors& parameters() const { return parameters_; }
  [[nodiscard]] ParameterArena& arena() { return *arena_; }

  /// Before windows that follow anything else: parameters may have been replaced or written, and another
  /// Trainer may have used the optimizer. Errors: StepError `parameter-moved`.
  void tie();
  /// One update after the arena's window was closed.
  void step(const UpdatePass& pass);
  /// Whether the pass may have a DeviceDecision.
  [[nodiscard]] bool takes_found_inf() const { return own_ && own_->takes_found_inf(); }
  /// See Optimizer.
  void take_back() { own_->take_back(); }

  [[nodiscard]] const std::vector<std::string>& group_names() const { return group_names_; }
  [[nodiscard]] double base_lr(std::size_t group) const { return base_lrs_[group]; }
  void set_base_lr(std::size_t group, double lr) { base_lrs_[group] = lr; }
  /// Sets every group's rate to its base times `factor`.
  void set_rates(double factor);
  [[nodiscard]] double rate(std::size_t group) const;
  void set_rate(std::size_t group, double rate);

  /// Errors: CheckpointError `optimizer-state-not-saved` for a state that is no tensor or list of tensors, and no number,
  /// flag, text or tuple of them.
  [[nodiscard]] OptimizerState state() const;
  /// What of `saved` does not fit this optimizer, a sentence each; empty: load() will work.
  [[nodiscard]] std::vector<std::string> misfits(const OptimizerState& saved) const;
  void load(const OptimizerState& saved);
  /// Puts the state back to what it is now, each time it is called; refers to this adapter.
  [[nodiscard]] std::function<void()> restore_point();

 private:
  [[nodiscard]] OptimizerState own_state() const;
  void load_own(const OptimizerState& saved);

  torch::optim::Optimizer& optimizer_;
  Optimizer* own_;  // the same, if it is one of this library
  NamedTensors parameters_;
  std::optional<ParameterArena> arena_;
  std::vector<std::vector<std::string>> names_;  // of each group's parameters, in the group's order
  std::vector<std::string> group_names_;
  std::vector<double> base_lrs_;
};

}  // namespace lockstep
