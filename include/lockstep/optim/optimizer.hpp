// The optimizers of this library: an update rule over flat parameters, run in one pass.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/optim/parameter_arena.hpp"
#include "lockstep/optim/parameter_groups.hpp"
#include "lockstep/optim/weight_average.hpp"

namespace lockstep {

/// A piece of the parameters that an update rule steps at once. All tensors have one shape and type, fp32 or
/// fp64, and lie contiguous in memory; what they mean element by element is all that a rule may use.
struct UpdateRange {
  std::size_t group = 0;
  double lr = 0;
  std::int64_t step = 0;  ///< updates of these parameters, this one included
  const at::Tensor& parameters;
  const at::Tensor& gradients;
  const std::vector<at::Tensor>& state;  ///< in the order of state_names()
  const at::Tensor& step_tensor;  ///< `step` as the fused operations want it: a float scalar on the device
  /// Gradients are to be divided by it: a float scalar on the device, which the fused operations call
  /// grad_scale.
  const std::optional<at::Tensor>& divisor;
  /// Where it is 1 nothing may change; a float scalar on the device. Only for rules that say takes_found_inf().
  const std::optional<at::Tensor>& found_inf;
};

/// What the device knows of an update while the host does not yet. Scalars.
struct DeviceDecision {
  at::Tensor divisor;                   ///< of the gradients; a double
  std::optional<at::Tensor> found_inf;  ///< a float: 1 where gradients are not finite, else 0
};

/// What else an update does while a piece of the parameters is in cache.
struct UpdatePass {
  double divisor = 1;                ///< of the gradients
  WeightAverage* average = nullptr;  ///< is moved after the parameters
  bool clear_gradients = false;      ///< in the flat layout
  /// Takes the place of `divisor`. Where it says that gradients are not finite, nothing changes but what take_back() puts
  /// right. For an optimizer that takes_found_inf(). Null: they are finite.
  const DeviceDecision* decision = nullptr;
};

namespace detail {
class FlatUpdate;
}

/// A named option of an update rule, as Torch's optimizers save it.
using OptionValue = std::variant<bool, double, std::vector<double>>;
using OptionValues = std::map<std::string, OptionValue>;

/// An optimizer whose parameters may lie in a ParameterArena: AdamW, Adam, SGD, or a rule of the user's.
///
/// A Trainer lays the parameters out and steps. step() works in a loop of one's own too, on parameters where
/// they are. Parameters without a gradient are left untouched, their number of updates included, so that bias
/// corrections are each parameter's own. Parameters of half type are stepped through fp32 copies, their
/// master weights, which are state.
///
/// A rule of one's own derives from it and overrides kind(), state_names(), options(), set_option() and
/// apply().
///
/// Ownership: shares the parameters. Not thread-safe.
class Optimizer : public torch::optim::Optimizer, public HasGroupNames {
 public:
  ~Optimizer() override;

  /// For loops of one's own; the Trainer does not call it. Updates every parameter that has a gradient.
  at::Tensor step(LossClosure closure = nullptr) override;
  [[nodiscard]] const std::vector<std::string>& group_names() const override { return names_; }

  /// Moves the state to where the arena's blocks are. Its groups are the optimizer's. The arena outlives this
  /// or detach().
  void attach(ParameterArena& arena);
  /// Gives the state storage of its own again; where there is no memory for that, the state is lost. Does
  /// nothing unless attached to this arena.
  void detach(const ParameterArena& arena) noexcept;
  /// One update after the arena's window was closed.
  void update(const UpdatePass& pass);
  /// The last update, one by a DeviceDecision, has changed nothing: it does not count as one.
  void take_back();

  /// `<parameter>/<field>`, and `<parameter>/step`, a 64-bit integer, of every parameter that was updated.
  /// Shares storage.
  [[nodiscard]] NamedTensors state() const;
  /// Takes over what state() gave, by name; what it has nothing for begins anew. Master weights that are
  /// missing are taken from the parameters.
  void load_state(const NamedTensors& state);
  /// Parameters may have been written since the last update: master weights that round to another value
  /// follow.
  void follow_parameters();

  /// The class's name in checkpoints.
  [[nodiscard]] virtual std::string kind() const = 0;
  /// The rule's own tensors for each parameter, zero at first.
  [[nodiscard]] virtual std::vector<std::string> state_names(std::size_t group) const = 0;
  [[nodiscard]] virtual OptionValues options(std::size_t group) const = 0;
  /// Of options(); others are ignored.
  virtual void set_option(std::size_t group, const std::string& name, const OptionValue& value) = 0;
  virtual void apply(const UpdateRange& range) = 0;
  /// Whether apply() looks at UpdateRange::found_inf.
  [[nodiscard]] virtual bool takes_found_inf() const { return false; }

 protected:
  /// `lrs`: the rate of each group.
  Optimizer(const ParameterGroups& groups, const std::vector<double>& lrs);
  /// For set_option(): state_names() names others than before. New state begins at zero.
  void state_names_changed();

 private:
  void work_in_place();

  std::vector<std::string> names_;
  std::vector<NamedTensors> parameters_;       // of each group
  std::unique_ptr<ParameterArena> own_arena_;  // for step(), where the parameters are
  std::unique_ptr<detail::FlatUpdate> flat_;   // null: not attached and never stepped
};

}  // namespace lockstep
