// Objects of the user's own whose state belongs in checkpoints.
#pragma once

#include <concepts>
#include <functional>
#include <string>
#include <utility>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// An object that gives its state as named tensors and takes it back. What is no tensor goes into one: a counter into
/// a tensor of one integer, a text into its bytes.
///
///     struct Curriculum {                                                              // valid
///       lockstep::NamedTensors state() const { return {{"level", torch::tensor(level)}}; }
///       void load_state(const lockstep::NamedTensors& state) { level = state.at(0).second.item<int>(); }
///       int level = 0;
///     };
///     struct Counter { lockstep::NamedTensors state() const; };      // invalid: what is saved must come back
template <class Object>
concept Stateful = requires(Object& object, const Object& saved, const NamedTensors& state) {
  { saved.state() } -> std::convertible_to<NamedTensors>;
  object.load_state(state);
};

/// How the state of one such object is reached. Internal: use Trainer::register_state.
struct RegisteredState {
  std::string name;
  std::function<NamedTensors()> state;
  std::function<void(const NamedTensors&)> load;
};

/// Refers to the object. Internal, as above.
template <Stateful Object>
RegisteredState registered_state(std::string name, Object& object) {
  return {.name = std::move(name),
          .state = [&object] { return std::as_const(object).state(); },
          .load = [&object](const NamedTensors& state) { object.load_state(state); }};
}

}  // namespace lockstep
