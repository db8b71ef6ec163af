// Moving a batch of any type to where the model is.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/data/example.hpp"

namespace lockstep {

/// Where a batch goes.
struct Placement {
  at::Device device = at::kCPU;
  /// The type that floating tensors are given; they keep theirs without it. Integer tensors always do.
  std::optional<at::ScalarType> floating = {};
};

/// `batch` with all its tensors at `placement`, through to_device: what to call on a batch of unknown type.
///
/// Tensors that are there already are shared, not copied. Works on tensors, Example, torch::data::Example,
/// std::pair, std::tuple, std::vector and std::map<std::string, ...> of what it works on; numbers and strings
/// stay as they are. For a struct of your own, write to_device in its namespace, with the batch type as its
/// result:
///
///     namespace mine {
///     struct Sentences { at::Tensor tokens, lengths; };
///     Sentences to_device(const Sentences& batch, const lockstep::Placement& placement) {
///       return {lockstep::place(batch.tokens, placement), batch.lengths};
///     }
///     }
///
/// Copies to CUDA go through pinned memory and are not waited for.
template <class Batch>
[[nodiscard]] Batch place(const Batch& batch, const Placement& placement);

namespace detail {

at::Tensor move_tensor(const at::Tensor& tensor, const Placement& placement);

}  // namespace detail

// A template, so that nothing that merely converts to a tensor is taken for one.
template <std::same_as<at::Tensor> Tensor>
Tensor to_device(const Tensor& tensor, const Placement& placement) {
  return detail::move_tensor(tensor, placement);
}

template <class Value>
requires std::is_arithmetic_v<Value> || std::same_as<Value, std::string> Value to_device(const Value& value,
                                                                                         const Placement&) {
  return value;
}

template <std::same_as<Example> Batch>
Batch to_device(const Batch& batch, const Placement& placement) {
  return {place(batch.data, placement), place(batch.target, placement)};
}

template <detail::TorchExample Batch>
Batch to_device(const Batch& batch, const Placement& placement) {
  if constexpr (std::is_void_v<typename Batch::TargetType>) {
    return Batch(place(batch.data, placement));
  } else {
    return Batch(place(batch.data, placement), place(batch.target, placement));
  }
}

template <class First, class Second>
std::pair<First, Second> to_device(const std::pair<First, Second>& batch, const Placement& placement) {
  return {place(batch.first, placement), place(batch.second, placement)};
}

template <class... Elements>
std::tuple<Elements...> to_device(const std::tuple<Elements...>& batch, const Placement& placement) {
  return std::apply(
      [&placement](const Elements&... elements) {
        return std::tuple<Elements...>(place(elements, placement)...);
      },
      batch);
}

template <class Element>
std::vector<Element> to_device(const std::vector<Element>& batch, const Placement& placement) {
  std::vector<Element> placed;
  placed.reserve(batch.size());
  for (const Element& element : batch) placed.push_back(place(element, placement));
  return placed;
}

template <class Value>
std::map<std::string, Value> to_device(const std::map<std::string, Value>& batch,
                                       const Placement& placement) {
  std::map<std::string, Value> placed;
  for (const auto& [key, value] : batch) placed.emplace(key, place(value, placement));
  return placed;
}

template <class Batch>
Batch place(const Batch& batch, const Placement& placement) {
  // Placement is in this namespace and Batch in its own, so the call finds what is declared in either.
  constexpr bool placeable = requires {
    { to_device(batch, placement) } -> std::same_as<Batch>;
  };
  static_assert(
      placeable,
      "lockstep: this batch type cannot be moved to a device; write Batch to_device(const Batch&, const "
      "lockstep::Placement&) in its own namespace");
  if constexpr (placeable) {
    return to_device(batch, placement);
  } else {
    return batch;
  }
}

}  // namespace lockstep
