// One sample with its target, or a batch of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>

namespace lockstep {

/// A sample, or a batch whose tensors have the batch as their first dimension. `target` may be undefined.
struct Example {
  at::Tensor data;
  at::Tensor target;
};

namespace detail {

template <class T>
concept ExampleWithTarget = std::same_as<decltype(T::target), typename T::TargetType> &&
    std::constructible_from<T, typename T::DataType, typename T::TargetType>;

/// torch::data::Example<Data, Target>, recognised by its members so that torch/data need not be included. A
/// struct with more in it than data and target is not one: what else it holds would be lost.
template <class T>
concept TorchExample = std::same_as<decltype(T::data), typename T::DataType> &&
    (std::same_as<typename T::TargetType, void> || ExampleWithTarget<T>);

}  // namespace detail

}  // namespace lockstep
