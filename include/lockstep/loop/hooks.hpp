// Code of the user's own at fixed points of a run.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/config/train_config.hpp"
#include "lockstep/config/train_state.hpp"
#include "lockstep/loop/evaluator.hpp"
#include "lockstep/loop/registered_state.hpp"
#include "lockstep/loop/update_outcome.hpp"
#include "lockstep/optim/weight_average.hpp"
#include "lockstep/ranks/accelerator.hpp"
#include "lockstep/tensors/step_output.hpp"
#include "lockstep/watch/history.hpp"

namespace lockstep {

class RunLogger;

/// What hooks of a run ask for, until all ranks have heard of it.
struct RunRequests {
  std::optional<std::string> stop = {};  ///< the reason
  std::optional<std::string> end = {};   ///< the reason
  bool evaluate = false;
  bool save = false;
};

/// The run under way, as a hook sees it. What a hook asks for happens on all ranks, whichever of them asks, at the next
/// boundary: after the update under way, before it is evaluated and saved; or, asked for in an evaluation, right after it.
class Run {
 public:
  /// Refers to all of it; `logger` may be null.
  Run(const TrainState& state, const History& history, const std::optional<EvaluationResults>& test_results,
      const TrainConfig& config, const Accelerator& accelerator, RunLogger* logger)
      : state_(state),
        history_(history),
        test_results_(test_results),
        config_(config),
        accelerator_(accelerator),
        logger_(logger) {}

  [[nodiscard]] const TrainState& state() const { return state_; }
  /// That of the Trainer. An epoch's record is there from epoch_end on, what is evaluated at its end later.
  [[nodiscard]] const History& history() const { return history_; }
  /// What TrainerOptions::test gave: in run_end; unset before that, or if there was no test.
  [[nodiscard]] const std::optional<EvaluationResults>& test_results() const { return test_results_; }
  /// The settings of this train() call as they apply.
  [[nodiscard]] const TrainConfig& config() const { return config_; }
  [[nodiscard]] const Accelerator& accelerator() const { return accelerator_; }

  /// Records named numbers in the run's log, as an event `values` of the present step and epoch. Only the main process
  /// writes, and only with a RunLogger.
  void log(std::vector<std::pair<std::string, double>> values);
  /// A line for people, on the main process only: on the RunLogger's console, or without one on standard error.
  void info(const std::string& text);

  /// Interrupts the run as a StopRequest does, to be resumed; the first reason counts.
  void request_stop(std::string reason) {
    if (!requests_.stop) requests_.stop = std::move(reason);
  }
  /// Ends the run as a limit of TrainConfig does, with the final evaluation, the test and `final`:
  /// `EndReason::early_stop`. A stop at the same update wins. The first reason counts, and is the text of the log's
  /// event `end`. A resumed run goes on unless it is asked again, from run_begin on.
  void request_end(std::string reason) {
    if (!requests_.end) requests_.end = std::move(reason);
  }
  /// Evaluates all sets, whatever their intervals.
  void request_evaluation() { requests_.evaluate = true; }
  /// Writes a checkpoint, if train() was given a folder.
  void request_save() { requests_.save = true; }

  /// Internal.
  RunRequests take_requests() { return std::exchange(requests_, {}); }

 private:
  const TrainState& state_;
  const History& history_;
  const std::optional<EvaluationResults>& test_results_;
  const TrainConfig& config_;
  const Accelerator& accelerator_;
  RunLogger* logger_;
  RunRequests requests_;
};

/// A hook as a list of functions, for who decides at run time which points it has. Unset ones are not called.
struct HookFunctions {
  std::function<void(Run&)> run_begin = {};
  std::function<void(Run&)> epoch_begin = {};
  std::function<void(Run&)> window_begin = {};
  std::function<void(Run&, const StepOutput&)> after_loss = {};
  std::function<void(Run&)> before_sync = {};
  std::function<void(Run&)> before_clip = {};
  std::function<void(Run&)> before_update = {};
  std::function<void(Run&, const UpdateOutcome&)> after_update = {};
  std::function<void(Run&)> epoch_end = {};
  std::function<void(Run&, Weights)> evaluation_begin = {};
  std::function<void(Run&, const std::string&, const StepOutput&)> evaluation_batch_end = {};
  std::function<void(Run&, Weights, const EvaluationResults&)> evaluation_end = {};
  std::function<void(Run&, const std::filesystem::path&)> checkpoint_saved = {};
  std::function<void(Run&, const std::string&)> stop = {};
  std::function<void(Run&, const std::exception_ptr&)> error = {};
  std::function<void(Run&)> run_end = {};
};

/// A base for hooks of which a misspelt method must not compile: each method is marked `override`, and the compiler
/// refuses one that is no point. Those that a hook does not override are not called.
///
///     struct Watch : lockstep::Hook {                                                             // valid
///       void after_update(lockstep::Run&, const lockstep::UpdateOutcome&) override;
///     };
///     struct Wrong : lockstep::Hook { void after_updaet(lockstep::Run&) override; };  // invalid: does not compile
struct Hook {
  virtual ~Hook() = default;
  virtual void run_begin(Run&) {}
  virtual void epoch_begin(Run&) {}
  virtual void window_begin(Run&) {}
  virtual void after_loss(Run&, const StepOutput&) {}
  virtual void before_sync(Run&) {}
  virtual void before_clip(Run&) {}
  virtual void before_update(Run&) {}
  virtual void after_update(Run&, const UpdateOutcome&) {}
  virtual void epoch_end(Run&) {}
  virtual void evaluation_begin(Run&, Weights) {}
  virtual void evaluation_batch_end(Run&, const std::string&, const StepOutput&) {}
  virtual void evaluation_end(Run&, Weights, const EvaluationResults&) {}
  virtual void checkpoint_saved(Run&, const std::filesystem::path&) {}
  virtual void stop(Run&, const std::string&) {}
  virtual void error(Run&, const std::exception_ptr&) {}
  virtual void run_end(Run&) {}
};

namespace detail {

/// Each point by its name, which a hook's method has, and what the method must look like.
#define LOCKSTEP_HOOK_POINTS(point)                                                         \
  point(run_begin, "(Run&)") point(epoch_begin, "(Run&)") point(window_begin, "(Run&)")     \
  point(after_loss, "(Run&, const StepOutput&)") point(before_sync, "(Run&)")               \
  point(before_clip, "(Run&)") point(before_update, "(Run&)")                               \
  point(after_update, "(Run&, const UpdateOutcome&)") point(epoch_end, "(Run&)")            \
  point(evaluation_begin, "(Run&, Weights)")                                                \
  point(evaluation_batch_end, "(Run&, const std::string& set, const StepOutput&)")          \
  point(evaluation_end, "(Run&, Weights, const EvaluationResults&)")                        \
  point(checkpoint_saved, "(Run&, const std::filesystem::path&)")                           \
  point(stop, "(Run&, const std::string& reason)")                                          \
  point(error, "(Run&, const std::exception_ptr&)") point(run_end, "(Run&)")

/// What to call at each point, in the order of the hooks.
struct HookPoints {
#define LOCKSTEP_POINT(name, signature) std::vector<decltype(HookFunctions::name)> name;
  LOCKSTEP_HOOK_POINTS(LOCKSTEP_POINT)
#undef LOCKSTEP_POINT
};

/// Whether `Object` itself has anything called like a point; its own signature does not matter here.
#define LOCKSTEP_HAS(name) \
  requires { requires !std::is_same_v<decltype(&Object::name), decltype(&::lockstep::Hook::name)>; }

template <class Object>
consteval bool has_any_point() {
#define LOCKSTEP_OR_HAS(name, signature) || LOCKSTEP_HAS(name)
  return false LOCKSTEP_HOOK_POINTS(LOCKSTEP_OR_HAS);
#undef LOCKSTEP_OR_HAS
}

/// Adds the methods of a hook to what is called. Empty functions of HookFunctions are left out.
template <class Object>
void add_hook(HookPoints& points, Object& hook) {
  static_assert(has_any_point<Object>(),
                "lockstep: this hook has no method of a hook point's name: check the spelling in docs/hooks.md");
#define LOCKSTEP_ADD(name, signature)                                                                            \
  static_assert(!std::is_base_of_v<::lockstep::Hook, Object> || requires { &Object::name; },                     \
                "lockstep: a hook's " #name " must be public, and the only method of this name");                \
  if constexpr (LOCKSTEP_HAS(name)) {                                                                            \
    auto call = [&hook](auto&&... given) -> decltype(hook.name(std::forward<decltype(given)>(given)...)) {       \
      return hook.name(std::forward<decltype(given)>(given)...);                                                 \
    };                                                                                                           \
    constexpr bool fits = std::is_constructible_v<decltype(HookFunctions::name), decltype(call)>;                \
    static_assert(fits, "lockstep: a hook's " #name " must be a method that can be called as " #name signature); \
    if constexpr (std::is_same_v<std::remove_const_t<Object>, HookFunctions>) {                                  \
      if (hook.name) points.name.push_back(hook.name);                                                           \
    } else if constexpr (fits) {                                                                                 \
      points.name.push_back(call);                                                                               \
    }                                                                                                            \
  }
  LOCKSTEP_HOOK_POINTS(LOCKSTEP_ADD)
#undef LOCKSTEP_ADD
#undef LOCKSTEP_HAS
}

}  // namespace detail

/// Hooks in the order in which they are called at each point. A hook is any object with some of the methods that
/// HookFunctions names as members; a point that no hook has costs nothing.
///
///     struct Watch {                                                              // valid
///       void after_update(lockstep::Run& run, const lockstep::UpdateOutcome& outcome) {
///         if (outcome.gradient_norm > 1e6) run.request_stop("the gradient grows");
///       }
///     };
///     struct Wrong { void after_update(lockstep::Run& run, int norm); };          // invalid: does not compile
///
/// One whose state belongs in checkpoints is Stateful and says under which name, `std::string name() const`, as
/// Trainer::register_state() takes it.
///
/// Ownership: of a hook given as a temporary; refers to others, which outlive the Trainer.
class Hooks {
 public:
  Hooks() = default;

  template <class... Given>
    requires(sizeof...(Given) > 0 && !(std::is_same_v<std::remove_cvref_t<Given>, Hooks> || ...))
  Hooks(Given&&... hooks) {
    (add(std::forward<Given>(hooks)), ...);
  }

  [[nodiscard]] const detail::HookPoints& points() const { return points_; }
  [[nodiscard]] const std::vector<RegisteredState>& states() const { return states_; }
  /// No hook has a point.
  [[nodiscard]] bool empty() const;
  /// How many functions each point has, for comparisons between ranks.
  [[nodiscard]] std::string layout() const;

 private:
  template <class Given>
  void add(Given&& hook) {
    using Object = std::remove_reference_t<Given>;
    if constexpr (std::is_lvalue_reference_v<Given>) {
      add_object(hook);
    } else {
      auto owned = std::make_shared<Object>(std::move(hook));
      add_object(*owned);
      owned_.push_back(std::move(owned));
    }
  }

  template <class Object>
  void add_object(Object& hook) {
    detail::add_hook(points_, hook);
    if constexpr (Stateful<Object>) {
      static_assert(requires { { hook.name() } -> std::convertible_to<std::string>; },
                    "lockstep: a hook with state() and load_state() needs std::string name() const, under which it is saved");
      states_.push_back(registered_state(hook.name(), hook));
    }
  }

  detail::HookPoints points_;
  std::vector<RegisteredState> states_;
  std::vector<std::shared_ptr<void>> owned_;
};

}  // namespace lockstep
