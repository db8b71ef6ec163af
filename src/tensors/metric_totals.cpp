#include "lockstep/tensors/metric_totals.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/add.h>

#include <limits>

#include "lockstep/base/messages.hpp"

namespace lockstep {

MetricTotals::Entry& MetricTotals::entry(std::string_view name, std::size_t position) {
  // Steps name their metrics in the same order every time, so the expected position is nearly always right.
  if (position < entries_.size() && entries_[position].name == name) return entries_[position];
  for (auto& entry : entries_) {
    if (entry.name == name) return entry;
  }
  return entries_.emplace_back(Entry{.name = std::string(name), .device_sum = {}});
}

void MetricTotals::add(std::string_view name, double sum, std::int64_t count) {
  auto& total = entry(name, entries_.size());
  total.sum += sum;
  total.count += count;
}

void MetricTotals::add(double loss_value, const StepOutput& output) {
  const std::int64_t samples = output.num_samples.value();
  auto& loss = entry("loss", 0);
  loss.sum += loss_value * static_cast<double>(samples);
  loss.count += samples;

  std::size_t position = 1;
  for (const auto& [name, metric] : output.metrics) {
    if (name == "loss" || name.empty()) throw message::reserved_metric_name(name);
    if (metric.count < 0) throw message::negative_metric_count(name, metric.count);
    auto& total = entry(name, position++);
    total.count += metric.count;
    if (!metric.sum.defined()) {
      total.sum += metric.number;
      continue;
    }
    if (metric.sum.numel() != 1) throw message::metric_not_scalar(name, metric.sum.numel());
    if (metric.sum.is_cpu()) {
      total.sum += metric.sum.item<double>();
    } else {
      const at::Tensor sum = metric.sum.detach().reshape({}).to(at::kDouble);
      total.device_sum = total.device_sum.defined() ? at::add(total.device_sum, sum) : sum;
    }
  }
}

void MetricTotals::merge(const MetricTotals& other) {
  std::size_t position = 0;
  for (const auto& from : other.entries_) {
    auto& total = entry(from.name, position++);
    total.sum += from.sum;
    total.count += from.count;
    if (from.device_sum.defined()) {
      total.device_sum =
          total.device_sum.defined() ? at::add(total.device_sum, from.device_sum) : from.device_sum;
    }
  }
}

const std::vector<MetricTotals::Entry>& MetricTotals::entries() {
  for (auto& entry : entries_) {
    if (entry.device_sum.defined()) entry.sum += entry.device_sum.item<double>();
    entry.device_sum.reset();
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
