// Norms of each parameter and of its gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/loop/hooks.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct ParameterStatisticsOptions {
  /// Updates between two measurements; 0 or less: none.
  std::int64_t every = 100;
  bool weights = true;
  bool gradients = true;
};

/// Logs for each trainable parameter `weight_norm/<name>`, `grad_norm/<name>` and `grad_weight_ratio/<name>`,
/// and `weight_norm/total`, as events `values` of the update that was measured.
///
/// Norms are in double: of the weights before the update, and of the mean gradient over all ranks before
/// clipping. A parameter that the window has not used has neither a gradient's norm nor a ratio; the ratio
/// needs a weight norm that is positive. Names are the same on one rank and on many. A parameter that is
/// frozen for now is left out.
///
/// Ownership: refers to the parameters that are trainable when it is made. Reads all norms to the host at
/// once. As any hook with before_clip, it has gradients divided before they are clipped (docs/hooks.md).
///
///     ParameterStatistics statistics(*net, {.every = 50});
///     ParameterStatistics both({{"generator", *generator}, {"critic", *critic}});  // weight_norm/critic.<name>
class ParameterStatistics final : public Hook {
 public:
  using Modules = std::vector<std::pair<std::string, std::reference_wrapper<const torch::nn::Module>>>;
  using Values = std::vector<std::pair<std::string, double>>;

  explicit ParameterStatistics(const torch::nn::Module& module, ParameterStatisticsOptions options = {});
  explicit ParameterStatistics(const Modules& modules, ParameterStatisticsOptions options = {});

  void window_begin(Run& run) override;
  void before_clip(Run& run) override;
  void after_update(Run& run, const UpdateOutcome& outcome) override;

  /// The latest; empty before the first measurement.
  [[nodiscard]] const Values& values() const { return values_; }

 private:
  NamedTensors parameters_;
  ParameterStatisticsOptions options_;
  Values values_;
  bool due_ = false;  // at the update under way
  std::vector<std::int64_t> versions_;  // of all gradients when its window began
};

}  // namespace lockstep
