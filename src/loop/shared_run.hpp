// What the ranks of a run do together, besides the votes themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/loop/accumulation_window.hpp"
#include "lockstep/optim/parameter_arena.hpp"
#include "lockstep/ranks/accelerator.hpp"
#include "lockstep/tensors/metric_totals.hpp"
#include "loop/trained_modules.hpp"
#include "ranks/gradient_sync.hpp"

namespace lockstep {

/// A window as all ranks see it.
struct AgreedWindow {
  std::int64_t samples = 0;       ///< of all ranks
  std::int64_t microbatches = 0;  ///< of the rank that ran most
  bool more_data = false;         ///< some rank has another batch in this epoch
  bool stop = false;              ///< some rank was asked to stop
  int saves = 0;                  ///< ranks that ask for a save
};

/// With one rank, nothing is sent and nothing is waited for.
///
/// Ownership: refers to everything it is made of.
class SharedRun {
 public:
  SharedRun(const Accelerator& accelerator, ParameterArena& arena, const TrainedModules& modules);

  [[nodiscard]] bool alone() const { return agreement_.alone(); }

  /// Compares what must be equal on all ranks. Errors: RankError `ranks-differ` on all of them, naming each difference.
  void compare(const nlohmann::json& description);
  /// Names, shapes and types of all tensors of the modules, for compare().
  [[nodiscard]] nlohmann::json describe_tensors() const;
  /// Gives all ranks the parameters and buffers of rank 0.
  void broadcast_weights();
  /// Compares the weights bit for bit. Errors: RankError `weights-differ` on all ranks.
  void compare_weights(std::int64_t update);

  /// A window opens; its first gradients come next.
  void open_window(const AccumulationWindow& window);
  /// Runs the microbatch's backward pass; `last`: of this rank's window. `backward`: see AccumulationWindow::add().
  void add(AccumulationWindow& window, const StepOutput& output, bool last, const Backward& backward);
  /// Votes, and sums the gradients; the window then has the denominator's unit that all ranks use. Errors: those of
  /// Agreement::meet().
  AgreedWindow close_window(AccumulationWindow& window, bool stop, bool save, bool more_data);
  /// This rank cannot open or finish its window: says so at the vote that the others wait in. `loss_unit`: the one that
  /// the window begins with. After it the agreement is settled.
  void fail_window(const std::exception_ptr& failure, std::int64_t loss_unit) noexcept;

  /// Of a window that failed: what was sent is not wanted any more.
  void drop_sums() noexcept;

  /// As long as the result lives, buffers have rank 0's values.
  [[nodiscard]] std::shared_ptr<void> buffers_of_main() const;

  /// The elements of the slices that gradients are summed in; null: nothing is summed.
  [[nodiscard]] nlohmann::json slice_layout() const;

 private:
  std::vector<bool> touched_on_any_rank(bool all_touched) const;

  ParameterArena& arena_;
  const TrainedModules& modules_;
  Agreement& agreement_;
  std::optional<GradientSync> sync_;  // of several ranks
  bool unit_known_ = false;           // when the window opened
};

/// The totals of all ranks together, names in the order of their first appearance, rank 0's first. Every rank. Waits for
/// the device. Errors: those of Collectives.
MetricTotals over_ranks(MetricTotals own, Agreement& agreement);

}  // namespace lockstep
