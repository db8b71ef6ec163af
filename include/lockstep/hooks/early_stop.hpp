// Stops when a metric of the evaluations gets no better.
#pragma once

#include <string>
#include <utility>

#include "lockstep/config/monitor.hpp"
#include "lockstep/loop/hooks.hpp"

namespace lockstep {

/// Asks for a stop when its Monitor's patience runs out.
///
/// TrainConfig::monitor does that too, and it decides about the best weights, but there is one of it. These
/// are for further metrics: any number, each with its own patience and direction. What they ask for is a stop
/// as by a StopRequest: `last` is saved, and a resume goes on.
///
///     EarlyStop accuracy(Monitor("validation/accuracy", {.direction = Direction::maximize, .patience = 5}));
///
/// Errors: ConfigError `unknown-metric`, in a run.
class EarlyStop final : public Hook {
 public:
  explicit EarlyStop(Monitor monitor) : monitor_(std::move(monitor)) {}

  void evaluation_end(Run& run, Weights weights, const EvaluationResults& results) override;

  [[nodiscard]] std::string name() const;
  [[nodiscard]] NamedTensors state() const;
  void load_state(const NamedTensors& state);

 private:
  Monitor monitor_;
  TrainState judged_;  // what the Monitor keeps there
};

}  // namespace lockstep
