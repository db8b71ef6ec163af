// Adam and AdamW on Torch's fused operations.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.hpp"

namespace lockstep {

/// Of a group; weight decay is ParameterGroup::weight_decay.
struct AdamOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  bool amsgrad = false;
  bool maximize = false;
};
using AdamWOptions = AdamOptions;

/// Adam with L2 regularisation: weight decay times the parameter is added to its gradient.
///
/// `options` hold for every group that `of_groups` does not name. Errors: ConfigError `invalid-settings`,
/// `unknown-group`. Source: D. P. Kingma, J. Ba, "Adam: A Method for Stochastic Optimization", 2015; amsgrad:
/// S. J. Reddi, S. Kale, S. Kumar, "On the Convergence of Adam and Beyond", 2018.
class Adam : public Optimizer {
 public:
  explicit Adam(const ParameterGroups& groups, const AdamOptions& options = {},
                const std::map<std::string, AdamOptions>& of_groups = {});

  [[nodiscard]] std::string kind() const override;
  [[nodiscard]] std::vector<std::string> state_names(std::size_t group) const override;
  [[nodiscard]] OptionValues options(std::size_t group) const override;
  void set_option(std::size_t group, const std::string& name, const OptionValue& value) override;
  void apply(const UpdateRange& range) override;
  [[nodiscard]] bool takes_found_inf() const override { return true; }

 protected:
  struct Group {
    AdamOptions options;
    double weight_decay;
  };
  std::vector<Group> groups_;
};

/// Adam with decoupled weight decay: each update first scales the parameter by 1 - lr * weight_decay.
///
///     lockstep::AdamW optimizer(lockstep::weight_decay_groups(*model, 0.05), {.lr = 1e-3});
///
/// Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", 2019.
class AdamW final : public Adam {
 public:
  using Adam::Adam;
  [[nodiscard]] std::string kind() const override;
  void apply(const UpdateRange& range) override;
};

}  // namespace lockstep
