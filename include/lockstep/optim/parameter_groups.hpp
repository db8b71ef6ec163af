// Which parameters are trained, and with which weight decay.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/tensors/named_tensors.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Parameters that share their options. Edit it as you like before the optimizer is built.
struct ParameterGroup {
  std::string name;
  NamedTensors parameters;
  double weight_decay = 0;
  /// The group's own learning rate; unset: the optimizer's.
  std::optional<double> lr = {};
};

using ParameterGroups = std::vector<ParameterGroup>;

/// An optimizer whose groups have names; the Trainer logs and sets learning rates by them.
class HasGroupNames {
 public:
  virtual ~HasGroupNames() = default;
  [[nodiscard]] virtual const std::vector<std::string>& group_names() const = 0;
};

/// Every trainable parameter once: frozen ones are left out, one that is registered under several names appears under
/// the first.
[[nodiscard]] NamedTensors trainable_parameters(const torch::nn::Module& module);

/// Says of a parameter whether it is exempt from weight decay.
using DecayExclusion = std::function<bool(const std::string& name, const at::Tensor& parameter)>;

/// Exempts scalars, vectors, and parameters whose name contains one of these parts.
///
///     weight_decay_groups(*net, 0.05, no_weight_decay({"embedding", "norm"}))
[[nodiscard]] DecayExclusion no_weight_decay(std::vector<std::string> name_parts);

/// Two groups, `decay` and `no_decay` (an empty one is left out). By default scalars and vectors, which biases and norm
/// scales are, do not decay. Errors: ConfigError `no-trainable-parameter`, `invalid-settings` (negative decay).
[[nodiscard]] ParameterGroups weight_decay_groups(const torch::nn::Module& module, double weight_decay,
                                                  const DecayExclusion& exclude = {});

}  // namespace lockstep
