#include "loop/training_totals.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/tensor.h>

#include <string>
#include <tuple>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view line_prefix = "log/";
constexpr std::string_view epoch_prefix = "epoch/";
const std::string norm_name = "epoch_grad_norm";
const std::string straddles_name = "log_straddles_epoch";

/// As doubles in a tensor, so that no value, NaN included, loses a bit.
at::Tensor tensor_of(double sum, std::int64_t count) {
  return at::tensor({sum, static_cast<double>(count)}, at::kDouble);
}

void append(NamedTensors& tensors, std::string_view prefix, MetricTotals& totals) {
  for (const auto& total : totals.entries()) {
    tensors.emplace_back(std::string(prefix) + total.name, tensor_of(total.sum, total.count));
  }
}

std::pair<double, std::int64_t> sum_and_count(const at::Tensor& tensor) {
  return {tensor[0].item<double>(), static_cast<std::int64_t>(tensor[1].item<double>())};
}

bool take(MetricTotals& totals, std::string_view prefix, std::string_view name, const at::Tensor& tensor) {
  if (!name.starts_with(prefix)) return false;
  const auto [sum, count] = sum_and_count(tensor);
  totals.add(name.substr(prefix.size()), sum, count);
  return true;
}

}  // namespace

void TrainingTotals::add(const MetricTotals& window, const std::optional<double>& gradient_norm) {
  line_.merge(window);
  if (line_straddles_) epoch_.merge(window);
  if (gradient_norm) {
    norm_sum_ += *gradient_norm;
    ++norms_;
  }
}

MetricTotals TrainingTotals::take_line() {
  if (!std::exchange(line_straddles_, false)) epoch_.merge(line_);
  return std::exchange(line_, {});
}

MetricTotals TrainingTotals::take_epoch(bool with_norms) {
  if (!line_straddles_) epoch_.merge(line_);
  line_straddles_ = !line_.empty();
  if (with_norms) epoch_.add(norm_entry, norm_sum_, norms_);
  norm_sum_ = 0;
  norms_ = 0;
  return std::exchange(epoch_, {});
}

NamedTensors TrainingTotals::state() {
  NamedTensors tensors;
  append(tensors, line_prefix, line_);
  append(tensors, epoch_prefix, epoch_);
  if (norms_ > 0) tensors.emplace_back(norm_name, tensor_of(norm_sum_, norms_));
  if (line_straddles_) tensors.emplace_back(straddles_name, at::tensor({1.0}, at::kDouble));
  return tensors;
}

void TrainingTotals::load(const NamedTensors& tensors) {
  *this = {};
  for (const auto& [name, tensor] : tensors) {
    if (take(line_, line_prefix, name, tensor) || take(epoch_, epoch_prefix, name, tensor)) continue;
    if (name == norm_name) std::tie(norm_sum_, norms_) = sum_and_count(tensor);
    if (name == straddles_name) line_straddles_ = true;
  }
}

}  // namespace lockstep
