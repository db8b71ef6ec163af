#include "lockstep/tensors/metric_totals.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/add.h>

#include <limits>

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

/// Adds a one-element tensor to what waits on a device.
void add_to(at::Tensor& total, const at::Tensor& value, at::ScalarType type) {
  const at::Tensor scalar = value.detach().reshape({}).to(type);
  total = total.defined() ? at::add(total, scalar) : scalar;
}

void add_count(MetricTotals::Entry& total, const SampleCount& given) {
  const at::Tensor& tensor = given.tensor();
  if (tensor.defined()) {
    if (tensor.numel() != 1) throw message::metric_count_not_scalar(total.name, tensor.numel());
    if (!at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
      throw message::metric_count_not_integer(total.name, c10::toString(tensor.scalar_type()));
    }
    if (!tensor.is_cpu()) return add_to(total.device_count, tensor, at::kLong);
  }
  const std::int64_t count = tensor.defined() ? tensor.item<std::int64_t>() : given.number();
  if (count < 0) throw message::negative_metric_count(total.name, count);
  total.count += count;
}

}  // namespace

MetricTotals::Entry& MetricTotals::entry(std::string_view name, std::size_t position) {
  // Steps name their metrics in the same order every time, so the expected position is nearly always right.
  if (position < entries_.size() && entries_[position].name == name) return entries_[position];
  for (auto& entry : entries_) {
    if (entry.name == name) return entry;
  }
  return entries_.emplace_back(Entry{.name = std::string(name)});
}

void MetricTotals::add(std::string_view name, double sum, std::int64_t count) {
  auto& total = entry(name, entries_.size());
  total.sum += sum;
  total.count += count;
}

void MetricTotals::add(double loss, std::int64_t samples, const Metrics& metrics) {
  auto& losses = entry("loss", 0);
  losses.sum += loss * static_cast<double>(samples);
  losses.count += samples;

  std::size_t position = 1;
  for (const auto& [name, metric] : metrics) {
    if (name == "loss" || name.empty()) throw message::reserved_metric_name(name);
    auto& total = entry(name, position++);
    add_count(total, metric.count);
    if (!metric.sum.defined()) {
      total.sum += metric.number;
      continue;
    }
    if (metric.sum.numel() != 1) throw message::metric_not_scalar(name, metric.sum.numel());
    if (metric.sum.is_cpu()) {
      total.sum += metric.sum.item<double>();
    } else {
      add_to(total.device_sum, metric.sum, at::kDouble);
    }
  }
}

void MetricTotals::merge(const MetricTotals& other) {
  std::size_t position = 0;
  for (const auto& from : other.entries_) {
    auto& total = entry(from.name, position++);
    total.sum += from.sum;
    total.count += from.count;
    if (from.device_sum.defined()) add_to(total.device_sum, from.device_sum, at::kDouble);
    if (from.device_count.defined()) add_to(total.device_count, from.device_count, at::kLong);
  }
}

const std::vector<MetricTotals::Entry>& MetricTotals::entries() {
  for (auto& entry : entries_) {
    if (entry.device_sum.defined()) entry.sum += entry.device_sum.item<double>();
    if (entry.device_count.defined()) entry.count += entry.device_count.item<std::int64_t>();
    entry.device_sum.reset();
    entry.device_count.reset();
  }
  return entries_;
}

std::vector<std::pair<std::string, double>> MetricTotals::means() {
  std::vector<std::pair<std::string, double>> result;
  for (const auto& entry : entries()) {
    const double mean = entry.count == 0 ? std::numeric_limits<double>::quiet_NaN()
                                         : entry.sum / static_cast<double>(entry.count);
    result.emplace_back(entry.name, mean);
  }
  return result;
}

}  // namespace lockstep
