// What a Step must look like, checked with one sentence for each requirement.
//
//   auto step = [](Net& model, const Batch& batch) -> lockstep::StepOutput { ... };
//
// Valid: any callable as step(Net&, const Batch&) that returns a StepOutput: a lambda with explicit or `auto` parameters,
// a function, an object with operator(). Batch may be taken by value. Invalid: one that takes a shared_ptr or a module
// holder instead of the module, takes the batch as Batch&, or returns a bare loss (its denominator would be a guess).
//
// An object with operator() may have two methods more, each in the place of what happens without it:
//
//   Batch to_device(const Batch& batch, const lockstep::Placement& where);   // place(batch, where)
//   void backward(const at::Tensor& loss);                                   // loss.backward(), in training
//
// The loss that backward() gets is weighted and scaled: its gradients are added up over the window.
#pragma once

#include <concepts>
#include <memory>
#include <optional>
#include <type_traits>

#include "lockstep/base/messages.hpp"
#include "lockstep/data/batch.hpp"
#include "lockstep/data/batch_source.hpp"
#include "lockstep/ranks/accelerator.hpp"
#include "lockstep/tensors/autocast.hpp"
#include "lockstep/tensors/profiler_range.hpp"
#include "lockstep/tensors/step_output.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {
namespace detail {

struct Unknown {};

/// Parameter types of a callable; `known` is false for generic lambdas and overloaded objects.
template <class Callable>
struct Signature {
  using Model = Unknown;
  using Batch = Unknown;
  static constexpr bool known = false;
};
template <class Result, class M, class B>
struct Signature<Result (*)(M, B)> {
  using Model = std::remove_cvref_t<M>;
  using Batch = std::remove_cvref_t<B>;
  static constexpr bool known = true;
};
template <class Result, class M, class B>
struct Signature<Result (*)(M, B) noexcept> : Signature<Result (*)(M, B)> {};
template <class Class, class Result, class M, class B>
struct Signature<Result (Class::*)(M, B)> : Signature<Result (*)(M, B)> {};
template <class Class, class Result, class M, class B>
struct Signature<Result (Class::*)(M, B) const> : Signature<Result (*)(M, B)> {};
template <class Class, class Result, class M, class B>
struct Signature<Result (Class::*)(M, B) noexcept> : Signature<Result (*)(M, B)> {};
template <class Class, class Result, class M, class B>
struct Signature<Result (Class::*)(M, B) const noexcept> : Signature<Result (*)(M, B)> {};

template <class Step>
struct StepSignature : Signature<Step> {};
template <class Step>
  requires requires { &Step::operator(); }
struct StepSignature<Step> : Signature<decltype(&Step::operator())> {};

template <class Step, class Batch>
concept MovesBatches = requires(Step& step, const Batch& batch, const Placement& where) {
  { step.to_device(batch, where) } -> std::same_as<Batch>;
};

template <class Step>
concept RunsBackward = requires(Step& step, const at::Tensor& loss) { step.backward(loss); };

/// Checks the methods that a Step may have besides operator().
template <class Step, class Batch>
consteval bool check_step_methods() {
  constexpr bool moves = MovesBatches<Step, Batch> || !requires { &Step::to_device; };
  static_assert(moves,
                "lockstep: a Step's to_device must be a method that can be called as to_device(const Batch&, const "
                "Placement&) and returns a Batch");
  constexpr bool runs = RunsBackward<Step> || !requires { &Step::backward; };
  static_assert(runs,
                "lockstep: a Step's backward must be a method that can be called as backward(const at::Tensor& loss)");
  return moves && runs;
}

}  // namespace detail

/// Checks a Step at compile time. Every way out that finds a mistake says so in one sentence, and the last one is
/// unconditional, so that no wrong Step compiles in silence.
template <class Step, class Model, class Batch>
consteval bool check_step() {
  using detail::StepSignature;
  using Signature = StepSignature<Step>;
  if constexpr (!std::is_invocable_v<Step&, Model&, const Batch&>) {
    if constexpr (!Signature::known) {
      static_assert(std::is_invocable_v<Step&, Model&, const Batch&>,
                    "lockstep: a Step is called as step(module&, const Batch&), and this one cannot be");
    } else if constexpr (!std::is_base_of_v<typename Signature::Model, Model>) {
      static_assert(std::is_base_of_v<typename Signature::Model, Model>,
                    "lockstep: the Step's first parameter must be a reference to the module itself (Net&), not a pointer, "
                    "a holder or another type");
    } else if constexpr (!std::is_same_v<typename Signature::Batch, Batch>) {
      static_assert(std::is_same_v<typename Signature::Batch, Batch>,
                    "lockstep: the Step's second parameter must take what the loader yields (const Batch&)");
    } else {
      static_assert(std::is_invocable_v<Step&, Model&, const Batch&>,
                    "lockstep: the Step must take the batch as const Batch& (or by value), not Batch&, and the module as "
                    "Net&");
    }
    return false;
  } else {
    using Result = std::invoke_result_t<Step&, Model&, const Batch&>;
    static_assert(!std::is_same_v<Result, at::Tensor>,
                  "lockstep: a Step returns a StepOutput{.loss, .num_samples}; a bare loss has no denominator");
    static_assert(std::is_same_v<Result, at::Tensor> || std::is_same_v<Result, StepOutput>,
                  "lockstep: a Step returns a lockstep::StepOutput (write -> lockstep::StepOutput after its parameters)");
    return std::is_same_v<Result, StepOutput> && detail::check_step_methods<Step, Batch>();
  }
}

namespace detail {

/// The module type behind a shared_ptr, a module holder (TORCH_MODULE) or a reference.
template <class T>
struct ModuleOf {
  using type = T;
  static constexpr bool ok = std::is_base_of_v<torch::nn::Module, T>;
};
template <class T>
struct ModuleOf<std::shared_ptr<T>> : ModuleOf<T> {};
template <class T>
  requires requires { typename T::ContainedType; }
struct ModuleOf<T> : ModuleOf<typename T::ContainedType> {};

/// The module behind a handle: shared with a shared_ptr or a holder, borrowed from a reference.
/// Errors: ConfigError `null-model`.
template <class Model>
std::shared_ptr<Model> hold(const std::shared_ptr<Model>& model) {
  if (!model) throw message::null_model();
  return model;
}
template <class Model>
  requires std::is_base_of_v<torch::nn::Module, Model>
std::shared_ptr<Model> hold(Model& model) {
  return {std::shared_ptr<void>{}, &model};
}
template <class Holder>
  requires requires(Holder& holder) { holder.ptr(); typename Holder::ContainedType; }
auto hold(Holder& holder) {
  if (holder.is_empty()) throw message::null_model();
  return holder.ptr();
}

template <class Step, class Batch>
Batch place_for(Step& step, const Batch& batch, const Placement& where) {
  if constexpr (MovesBatches<Step, Batch>) {
    return step.to_device(batch, where);
  } else {
    return place(batch, where);
  }
}

/// Runs the Step, or what predicts, on a batch where the model is, under autocast if the precision is mixed.
template <class Step, class Model, class Batch>
auto call_step(Step& step, Model& model, const Batch& batch, const Accelerator& accelerator) {
  const ProfilerRange range("lockstep::step");
  const Batch placed = place_for(step, batch, accelerator.placement());
  std::optional<AutocastScope> autocast;
  if (const auto type = autocast_type(accelerator.options().precision)) {
    autocast.emplace(accelerator.device().type(), *type);
  }
  return step(model, placed);
}

}  // namespace detail

template <class T>
using module_t = typename detail::ModuleOf<std::remove_cvref_t<T>>::type;

}  // namespace lockstep
