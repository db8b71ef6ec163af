// Sums and denominators, divided once at the end. Training and evaluation both use it, so they cannot disagree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/tensors/step_output.hpp"

namespace lockstep {

/// Totals of a loss and of metrics over any number of microbatches.
class MetricTotals {
 public:
  struct Entry {
    std::string name;
    double sum = 0;
    std::int64_t count = 0;
    at::Tensor device_sum = {};    ///< what is not yet on the host: a double scalar, or undefined
    at::Tensor device_count = {};  ///< the same of the count: a 64-bit integer
  };

  /// Adds one microbatch: its mean loss times its samples, and its metrics. Tensors that live on the CPU are
  /// read at once, others are summed where they are, a negative count among them unnoticed. Errors: StepError
  /// `invalid-metric`.
  void add(double loss, std::int64_t samples, const Metrics& metrics);

  void add(std::string_view name, double sum, std::int64_t count);
  void merge(const MetricTotals& other);
  void clear() { entries_.clear(); }
  [[nodiscard]] bool empty() const { return entries_.empty(); }

  /// The sums and counts, read to the host. Waits for the device if sums are there.
  [[nodiscard]] const std::vector<Entry>& entries();

  /// sum / count of each name in order of first appearance; 0/0 is NaN. Waits like entries().
  [[nodiscard]] std::vector<std::pair<std::string, double>> means();

 private:
  Entry& entry(std::string_view name, std::size_t position);

  std::vector<Entry> entries_;
};

}  // namespace lockstep
