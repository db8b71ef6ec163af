// What a Step returns for one microbatch: a mean loss, its denominator, and metrics with theirs.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// How many samples a mean is the mean of. Any integer converts to it, and so does a tensor that holds one,
/// on any device: counting tokens there then costs no wait of its own.
class SampleCount {
 public:
  SampleCount() = default;
  template <std::integral Integer>
  SampleCount(Integer count) : number_(static_cast<std::int64_t>(count)) {}
  SampleCount(at::Tensor count) : tensor_(std::move(count)) {}

  /// Negative: it was given as a tensor, or not at all.
  [[nodiscard]] std::int64_t number() const { return number_; }
  /// Undefined: it was given as a number, or not at all.
  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }

 private:
  std::int64_t number_ = -1;
  at::Tensor tensor_;
};

/// A metric as numerator and denominator, so that means over batches of any size are exact.
struct MeanMetric {
  /// `sum`: a tensor of one element, on any device, with or without a graph (it is detached).
  MeanMetric(at::Tensor sum, SampleCount count) : sum(std::move(sum)), count(std::move(count)) {}
  MeanMetric(double sum, SampleCount count) : number(sum), count(std::move(count)) {}

  at::Tensor sum;     ///< undefined when the sum was given as a number
  double number = 0;  ///< the sum when it was given as a number
  SampleCount count;  ///< what the sum is divided by; not negative
};

/// Named metrics in a fixed order. The name `loss` is taken by the loss itself.
class Metrics {
 public:
  using Entry = std::pair<std::string, MeanMetric>;

  Metrics() = default;
  Metrics(std::initializer_list<Entry> entries) : entries_(entries) {}

  void add(std::string name, MeanMetric metric) { entries_.emplace_back(std::move(name), std::move(metric)); }

  [[nodiscard]] auto begin() const { return entries_.begin(); }
  [[nodiscard]] auto end() const { return entries_.end(); }
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  std::vector<Entry> entries_;
};

/// The result of one Step.
struct StepOutput {
  /// The mean over num_samples samples: one floating-point element with a graph. Not looked at when num_samples is 0.
  at::Tensor loss;
  /// The denominator of that mean: samples, tokens, pixels, whatever the loss averages over. 0 adds nothing.
  SampleCount num_samples;
  Metrics metrics = {};
};

}  // namespace lockstep
