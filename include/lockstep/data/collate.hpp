// Making one batch of many samples.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/messages.hpp"
#include "lockstep/data/batch_buffers.hpp"
#include "lockstep/data/example.hpp"

namespace lockstep {

namespace detail {

/// [samples, ...], a new buffer; undefined if all are. Errors: DataError `uneven-samples`.
at::Tensor stack_samples(const std::vector<at::Tensor>& samples);

template <class Sample>
concept HasOwnCollate = requires(std::vector<Sample> samples) {
  collate(std::move(samples));
};

template <class Sample>
auto collate_samples(std::vector<Sample> samples);

/// Stands for the batch where a program is wrong, so that the sentence about it is the only error.
struct NoBatch {};

template <class Sample>
struct Collation {
  // Deducing the result brings the sentence first, before errors about the use of such a batch.
  static auto apply(const std::vector<Sample>&) {
    static_assert(
        sizeof(Sample) == 0,
        "lockstep: this sample type cannot be collated; write collate(std::vector<Sample>) in its own "
        "namespace, or give the DataLoader a collate functor");
    return NoBatch{};
  }
};

template <>
struct Collation<at::Tensor> {
  static at::Tensor apply(const std::vector<at::Tensor>& samples) { return stack_samples(samples); }
};

template <class Number>
requires std::is_arithmetic_v<Number>
struct Collation<Number> {
  using Integer = std::conditional_t<std::is_same_v<Number, bool>, bool, std::int64_t>;
  using Floating = std::conditional_t<std::is_same_v<Number, float>, float, double>;
  using Value = std::conditional_t<std::is_integral_v<Number>, Integer, Floating>;

  static at::Tensor apply(const std::vector<Number>& samples) {
    auto batch =
        empty_batch({static_cast<std::int64_t>(samples.size())}, c10::CppTypeToScalarType<Value>::value);
    std::transform(samples.begin(), samples.end(), batch.template mutable_data_ptr<Value>(),
                   [](Number number) { return static_cast<Value>(number); });
    return batch;
  }
};

/// Collates what `member`, a pointer to a member or a function, finds in every sample.
template <class Sample, class Member>
auto collate_member(std::vector<Sample>& samples, Member member) {
  std::vector<std::remove_cvref_t<std::invoke_result_t<Member, Sample&>>> values;
  values.reserve(samples.size());
  for (Sample& sample : samples) values.push_back(std::move(std::invoke(member, sample)));
  return collate_samples(std::move(values));
}

template <std::same_as<Example> Sample>
struct Collation<Sample> {
  static Example apply(std::vector<Sample> samples) {
    return {collate_member(samples, &Sample::data), collate_member(samples, &Sample::target)};
  }
};

template <template <class, class> class ExampleOf, class Data, class Target>
requires TorchExample<ExampleOf<Data, Target>>
struct Collation<ExampleOf<Data, Target>> {
  using Sample = ExampleOf<Data, Target>;

  static auto apply(std::vector<Sample> samples) {
    auto data = collate_member(samples, &Sample::data);
    if constexpr (std::is_void_v<Target>) {
      return ExampleOf<decltype(data), void>(std::move(data));
    } else {
      auto target = collate_member(samples, &Sample::target);
      return ExampleOf<decltype(data), decltype(target)>(std::move(data), std::move(target));
    }
  }
};

template <class First, class Second>
struct Collation<std::pair<First, Second>> {
  using Sample = std::pair<First, Second>;

  static auto apply(std::vector<Sample> samples) {
    return std::make_pair(collate_member(samples, &Sample::first), collate_member(samples, &Sample::second));
  }
};

template <class... Elements>
struct Collation<std::tuple<Elements...>> {
  using Sample = std::tuple<Elements...>;

  static auto apply(std::vector<Sample> samples) {
    return apply(samples, std::index_sequence_for<Elements...>());
  }

 private:
  template <std::size_t I>
  static std::tuple_element_t<I, Sample>& element(Sample& sample) {
    return std::get<I>(sample);
  }

  template <std::size_t... I>
  static auto apply(std::vector<Sample>& samples, std::index_sequence<I...>) {
    return std::make_tuple(collate_member(samples, element<I>)...);
  }
};

template <class Element>
struct Collation<std::vector<Element>> {
  static auto apply(std::vector<std::vector<Element>> samples) {
    const std::size_t length = samples.front().size();
    for (const auto& sample : samples) {
      if (sample.size() != length) {
        throw message::uneven_samples(std::to_string(length) + " elements",
                                      std::to_string(sample.size()) + " elements");
      }
    }
    std::vector<decltype(collate_samples(std::vector<Element>()))> batch;
    batch.reserve(length);
    for (std::size_t i = 0; i < length; ++i) {
      std::vector<Element> values;
      values.reserve(samples.size());
      for (auto& sample : samples) values.push_back(std::move(sample[i]));
      batch.push_back(collate_samples(std::move(values)));
    }
    return batch;
  }
};

template <class Value>
struct Collation<std::map<std::string, Value>> {
  using Sample = std::map<std::string, Value>;

  static auto apply(std::vector<Sample> samples) {
    const std::string keys = keys_of(samples.front());
    for (const Sample& sample : samples) {
      if (std::string other = keys_of(sample); other != keys) throw message::uneven_samples(keys, other);
    }
    std::map<std::string, decltype(collate_samples(std::vector<Value>()))> batch;
    for (const auto& [key, value] : samples.front()) {
      const auto at_key = [&name = key](Sample& sample) -> Value& { return sample.at(name); };
      batch.emplace(key, collate_member(samples, at_key));
    }
    return batch;
  }

 private:
  static std::string keys_of(const Sample& sample) {
    std::string keys = "keys";
    for (const auto& [key, value] : sample) keys += " '" + key + "'";
    return keys;
  }
};

template <class Sample>
auto collate_samples(std::vector<Sample> samples) {
  if constexpr (HasOwnCollate<Sample>) {
    return collate(std::move(samples));
  } else {
    return Collation<Sample>::apply(std::move(samples));
  }
}

}  // namespace detail

/// Makes a batch of at least one sample. The default of DataLoader.
///
/// A tensor becomes a tensor with the batch as its first dimension, in a buffer of its own; numbers become a
/// tensor [samples] (int64, bool, float32 or float64); Example, torch::data::Example, std::pair, std::tuple,
/// std::vector and std::map<std::string, ...> are made element by element. For a struct of your own, write a
/// function `Batch collate(std::vector<Sample>)` in its namespace; it also serves inside the types above.
/// Errors: DataError `uneven-samples`.
struct DefaultCollate {
  template <class Sample>
  auto operator()(std::vector<Sample> samples) const {
    return detail::collate_samples(std::move(samples));
  }
};

}  // namespace lockstep
