#include "loop/closure_update.hpp"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <optional>

#include "base/loop_messages.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

/// Parameters and optimizer state, to go back to.
class RestorePoint {
 public:
  explicit RestorePoint(OptimizerAdapter& adapter) : optimizer_state_(adapter.restore_point()) {
    for (const auto& parameter : adapter.parameters()) {
      parameters_.push_back(parameter.second);
      values_.push_back(parameter.second.detach().clone());
    }
  }

  void go_back() const {
    const c10::AutoGradMode no_grad(false);
    at::_foreach_copy_(parameters_, values_);
    optimizer_state_();
  }

 private:
  std::function<void()> optimizer_state_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> values_;
};

/// What the closure returns, and how.
class Evaluations {
 public:
  Evaluations(const AccumulationWindow& window, const ClosureParts& parts, const UpdateSettings& settings)
      : window_(window), parts_(parts), settings_(settings) {}

  /// After a window was closed: its gradients become what the optimizer gets. Returns their norm before clipping.
  double finish(const AccumulationWindow& window, std::int64_t samples) {
    loss_ = mean_loss(window, samples);
    auto& arena = parts_.adapter.arena();
    const MeanGradient gradient = mean_gradient(window, samples, parts_.adapter, settings_);
    if (!gradient.not_finite.empty()) {
      const auto& [update, rank] = window_.position();
      parts_.agreement.together([&, update = update, rank = rank] {
        throw message::non_finite_gradient(gradient.not_finite, update, rank);
      });
    }
    if (!arena.gradients().empty() && gradient.divisor != 1) at::_foreach_div_(arena.gradients(), gradient.divisor);
    hidden_.emplace(arena);
    return gradient.norm;
  }

  at::Tensor operator()() {
    if (failure_) std::rethrow_exception(failure_);
    const c10::AutoGradMode no_grad(false);
    try {
      if (called_) evaluate_again();
    } catch (...) {
      failure_ = std::current_exception();
      throw;
    }
    called_ = true;
    return at::scalar_tensor(loss_, at::kDouble);
  }

  /// Why an evaluation failed; all ranks know. User code may not have let it through.
  [[nodiscard]] const std::exception_ptr& failure() const { return failure_; }

  /// After it, gradients are as they are between windows.
  void end() { hidden_.reset(); }

  /// Whether all ranks call the closure once more, or none does.
  void agree(bool again) {
    const auto votes = parts_.agreement.meet({.phase = Phase::optimizer_step, .evaluate_again = again});
    std::vector<int> ranks[2];
    for (std::size_t rank = 0; rank < votes.size(); ++rank) {
      ranks[votes[rank].evaluate_again ? 1 : 0].push_back(static_cast<int>(rank));
    }
    if (ranks[0].empty() || ranks[1].empty()) return;
    parts_.agreement.together([&] { throw message::closure_calls_differ(ranks[1], ranks[0]); });
  }

 private:
  void evaluate_again() {
    agree(true);
    hidden_.reset();
    parts_.adapter.arena().open_window();
    AccumulationWindow again(window_.microbatches(), window_.loss_unit(), window_.position());
    parts_.shared.open_window(again);
    run_steps(again);
    if (parts_.before_sync) parts_.before_sync();
    const auto agreed = parts_.shared.close_window(again, false, false, true);
    finish(again, agreed.samples);
  }

  void run_steps(AccumulationWindow& again) {
    const c10::AutoGradMode gradients(true);
    try {
      for (std::int64_t i = 0; i < window_.microbatches(); ++i) {
        parts_.shared.add(again, parts_.step_again(i), again.last() && !parts_.before_sync, parts_.backward);
      }
    } catch (...) {
      if (!parts_.agreement.alone()) parts_.shared.fail_window(std::current_exception(), window_.loss_unit());
      throw;
    }
  }

  /// The loss comes before all metrics.
  double mean_loss(const AccumulationWindow& window, std::int64_t samples) const {
    return over_ranks(window.totals(), parts_.agreement).entries().front().sum / static_cast<double>(samples);
  }

  const AccumulationWindow& window_;
  const ClosureParts& parts_;
  const UpdateSettings& settings_;
  double loss_ = 0;
  bool called_ = false;
  std::exception_ptr failure_;
  std::optional<ParameterArena::HideUntouched> hidden_;
};

}  // namespace

UpdateOutcome closure_update(const AccumulationWindow& window, std::int64_t samples_on_all_ranks, const ClosureParts& parts,
                             WeightAverage* average, const UpdateSettings& settings) {
  if (samples_on_all_ranks == 0) return {.result = UpdateResult::skipped_empty};
  const c10::AutoGradMode no_grad(false);
  const RestorePoint before(parts.adapter);
  Evaluations evaluations(window, parts, settings);
  const double norm = evaluations.finish(window, samples_on_all_ranks);
  if (average) average->start();
  try {
    parts.agreement.locally([&] {
      try {
        parts.optimizer_step(parts.optimizer, [&evaluations] { return evaluations(); });
      } catch (...) {
        if (!evaluations.failure()) throw;
      }
    });
    if (evaluations.failure()) std::rethrow_exception(evaluations.failure());
    evaluations.agree(false);
  } catch (...) {
    evaluations.end();
    before.go_back();
    throw;
  }
  evaluations.end();
  if (average) average->update();
  return {.result = UpdateResult::applied, .gradient_norm = norm};
}

}  // namespace lockstep
