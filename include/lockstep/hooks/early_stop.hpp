// Ends a run when a metric of the evaluations gets no better.
#pragma once

#include <string>

#include "lockstep/config/monitor.hpp"
#include "lockstep/loop/hooks.hpp"

namespace lockstep {

/// Ends the run, as Run::request_end() does, when its Monitor's patience has run out.
///
/// TrainConfig::monitor does that too, and it decides about the best weights, but there is one of it. These
/// are for further metrics: any number, each with its own patience and direction. A run that is resumed after
/// such an end ends at once, unless the patience is longer now.
///
///     EarlyStop accuracy(Monitor("validation/accuracy", {.direction = Direction::maximize, .patience = 5}));
///
/// Errors: ConfigError `invalid-settings`; `unknown-metric`, in a run.
class EarlyStop final : public Hook {
 public:
  explicit EarlyStop(Monitor monitor);

  void run_begin(Run& run) override;
  void evaluation_end(Run& run, Weights weights, const EvaluationResults& results) override;

  [[nodiscard]] std::string name() const;
  [[nodiscard]] NamedTensors state() const;
  void load_state(const NamedTensors& state);

 private:
  void end_if_out_of_patience(Run& run) const;

  Monitor monitor_;
  TrainState judged_;  // what the Monitor keeps there
};

}  // namespace lockstep
