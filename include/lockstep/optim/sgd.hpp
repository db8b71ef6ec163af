// Stochastic gradient descent on Torch's fused operation.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.hpp"

namespace lockstep {

/// Of a group; weight decay is ParameterGroup::weight_decay.
struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;
  bool maximize = false;
};

/// SGD with momentum as in torch.optim.SGD: the buffer begins as the first gradient; weight decay is added to
/// the gradient.
///
/// `options` hold for every group that `of_groups` does not name. Errors: ConfigError `invalid-settings`,
/// `unknown-group`. Source: I. Sutskever, J. Martens, G. Dahl, G. Hinton, "On the importance of
/// initialization and momentum in deep learning", 2013.
class SGD final : public Optimizer {
 public:
  explicit SGD(const ParameterGroups& groups, const SGDOptions& options = {},
               const std::map<std::string, SGDOptions>& of_groups = {});

  [[nodiscard]] std::string kind() const override;
  [[nodiscard]] std::vector<std::string> state_names(std::size_t group) const override;
  [[nodiscard]] OptionValues options(std::size_t group) const override;
  void set_option(std::size_t group, const std::string& name, const OptionValue& value) override;
  void apply(const UpdateRange& range) override;
  [[nodiscard]] bool takes_found_inf() const override { return true; }

 private:
  struct Group {
    SGDOptions options;
    double weight_decay;
  };
  std::vector<Group> groups_;
};

}  // namespace lockstep
