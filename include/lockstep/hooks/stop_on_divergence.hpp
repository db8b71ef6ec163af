// Ends a run whose loss has left for good.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "lockstep/loop/hooks.hpp"

namespace lockstep {

struct StopOnDivergenceOptions {
  /// Updates between two looks. The short mean is over the microbatches since the last one.
  std::int64_t every = 50;
  /// The long mean is over about this many looks, later ones counting more.
  std::int64_t memory = 20;
  /// How many times the long mean the short one may be; more than 1. Where the long mean is negative, the
  /// short one may be above it by `factor - 1` times its size.
  double factor = 2;
};

/// Asks for a stop once the short mean of the loss is too far above the long one. (A loss that is not finite
/// ends a run without it.) Each rank judges its own losses; all stop together.
///
/// Reads one number to the host at every look. Errors: ConfigError `invalid-settings`.
class StopOnDivergence final : public Hook {
 public:
  explicit StopOnDivergence(StopOnDivergenceOptions options = {});

  void window_begin(Run& run) override;
  void after_loss(Run& run, const StepOutput& output) override;
  void after_update(Run& run, const UpdateOutcome& outcome) override;

  [[nodiscard]] std::string name() const { return "stop_on_divergence"; }
  [[nodiscard]] NamedTensors state() const;
  void load_state(const NamedTensors& state);

 private:
  /// Of microbatches, where the losses are.
  struct Sum {
    at::Tensor loss = {};
    std::int64_t count = 0;
  };
  void look(Run& run);

  StopOnDivergenceOptions options_;
  Sum window_;  // apart, since a window that fails has not been
  Sum short_;
  std::int64_t updates_ = 0;  // since the last look
  double long_mean_ = 0;
  std::int64_t looks_ = 0;
};

}  // namespace lockstep
