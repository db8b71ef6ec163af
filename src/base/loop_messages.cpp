#include "base/loop_messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::message {

std::string problem_optimizer_step_scaled(const std::string& precision) {
  return fmt::format(
      "optimizer_step is set, but with {} the gradients are scaled and an overflow skips the update, which a closure "
      "that is called several times cannot: use bf16-mixed, fp32 or fp64, or leave optimizer_step out.",
      precision);
}

RankError closure_calls_differ(const std::vector<int>& again, const std::vector<int>& done) {
  return {"closure-calls-differ",
          fmt::format("optimizer_step asks for the loss once more on rank {}, and has returned on rank {}: call the closure "
                      "equally often on all ranks; what it returns is the same on all of them, so decide by that.",
                      fmt::join(again, ", "), fmt::join(done, ", "))};
}

std::string problem_late_finite_check(const std::string& what) {
  return fmt::format(
      "late_finite_check is set, but {} has to know of each update at once whether its gradients are finite: unset it, or "
      "use AdamW, Adam or SGD of this library on one device, a schedule of its own, and no hook inside windows.",
      what);
}

ConfigError invalid_debug_variable(const std::string& text) {
  return {"invalid-debug-variable",
          fmt::format("the variable LOCKSTEP_DEBUG is \"{}\": set it to 1, true or on, or to 0 or nothing.", text)};
}

std::string warning_debug() {
  return "DEBUG: one batch a rank of the training data and of each evaluation set, at most one epoch, no loader threads, and "
         "no checkpoint, log or TensorBoard file. This run shows that the program works; its numbers mean nothing.";
}

std::string warning_overfit(std::int64_t batches) {
  return fmt::format(
      "OVERFIT: every window gets the same {} of epoch 0. The training loss must come close to zero; what the model learns "
      "so is of no use.",
      batches == 1 ? "first batch" : fmt::format("first {} batches", batches));
}

std::string problem_rate_finder(const std::string& setting, const std::string& value, const std::string& allowed) {
  return fmt::format("find_rate's {} is {}: give {}.", setting, value, allowed);
}

}  // namespace lockstep::message
