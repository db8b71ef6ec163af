// Averaged weights: an exponential moving average of the trainable parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// Which weights to evaluate or export: the current ones, their average, or those of the best evaluation so far as they
/// were evaluated then.
enum class Weights { raw, ema, best };

/// The exponential moving average of parameters: average = decay * average + (1 - decay) * parameter.
///
/// It starts from the weights before the first update and moves once per successful update; before that it is the raw
/// weights, bit for bit. Buffers that are not handed in (batch-norm statistics, say) are the model's own current ones
/// in the averaged model. The average lives on the tensors' device and in their type.
///
/// Ownership: shares the tensors with the model, owns the average.
/// Errors: ConfigError `invalid-settings` for a decay outside [0, 1).
/// Source: B. T. Polyak, A. B. Juditsky, "Acceleration of stochastic approximation by averaging", 1992, in the
/// exponential form of torch.optim.swa_utils.
class WeightAverage {
 public:
  WeightAverage(double decay, NamedTensors parameters);

  [[nodiscard]] double decay() const { return decay_; }
  [[nodiscard]] bool started() const { return !average_.empty(); }

  /// Call before the first update; does nothing later.
  void start();
  /// Call after each successful update.
  void update();

  /// The average by parameter name; the raw parameters before it started.
  [[nodiscard]] NamedTensors named() const;
  /// `state` with averages in the place of the tensors of their names.
  [[nodiscard]] NamedTensors over(NamedTensors state) const;
  /// Takes over a saved average, by name; the names and shapes must fit (they were checked). Empty: not started.
  void load(const NamedTensors& saved);

  /// Puts the average into the model, and the raw weights back when it goes.
  class [[nodiscard]] Swap {
   public:
    explicit Swap(WeightAverage& average);
    ~Swap();
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    std::vector<at::Tensor> parameters_;
    std::vector<at::Tensor> raw_;
  };

 private:
  double decay_;
  NamedTensors parameters_;
  std::vector<at::Tensor> tensors_;  // the parameters without their names, as the foreach operations want them
  std::vector<at::Tensor> average_;
};

}  // namespace lockstep
