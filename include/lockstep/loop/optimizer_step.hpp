// What steps the optimizer in the place of optimizer.step().
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <utility>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

/// Gives the mean loss of an update's window over all samples of all ranks, a double scalar on the CPU, and leaves the
/// gradients as an optimizer gets them: the mean over the same samples, clipped as configured. The first call returns
/// what the window has computed already; each further one runs the Step over the window's batches again. Every rank
/// calls it equally often. It is what torch::optim::Optimizer::step() takes.
using LossClosure = std::function<at::Tensor()>;

/// A function for TrainerOptions::optimizer_step, or none. It is called once for each window that is not skipped, with
/// gradients ready, and steps the optimizer as it likes:
///
///     [](torch::optim::Optimizer& optimizer, const lockstep::LossClosure& closure) { optimizer.step(closure); }  // valid
///     [](torch::optim::LBFGS& optimizer) { optimizer.step(nullptr); }                  // invalid: does not compile
class OptimizerStep {
 public:
  OptimizerStep() = default;

  template <class Function>
    requires(!std::is_same_v<std::remove_cvref_t<Function>, OptimizerStep>)
  OptimizerStep(Function function) {
    constexpr bool fits = std::is_invocable_v<Function&, torch::optim::Optimizer&, const LossClosure&>;
    static_assert(fits,
                  "lockstep: an optimizer_step is called as optimizer_step(torch::optim::Optimizer&, const "
                  "lockstep::LossClosure&), and this one cannot be");
    if constexpr (fits) function_ = std::move(function);
  }

  [[nodiscard]] explicit operator bool() const { return static_cast<bool>(function_); }
  void operator()(torch::optim::Optimizer& optimizer, const LossClosure& closure) const {
    function_(optimizer, closure);
  }

 private:
  std::function<void(torch::optim::Optimizer&, const LossClosure&)> function_;
};

}  // namespace lockstep
