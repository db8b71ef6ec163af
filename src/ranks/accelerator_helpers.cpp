// What a program does on all ranks besides training.
#include <ATen/core/Scalar.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>

#include <cstring>
#include <iostream>
#include <limits>
#include <numeric>

#include "base/rank_messages.hpp"
#include "lockstep/ranks/accelerator.hpp"

namespace lockstep {
namespace {

/// Type and sizes, as one text that every rank can compare and read.
std::string shape_of(const at::Tensor& tensor) {
  std::string text = c10::toString(tensor.scalar_type());
  for (const auto size : tensor.sizes()) text.append(" ").append(std::to_string(size));
  return text;
}

/// Everything but the size of the first dimension.
std::string shape_of_row(const at::Tensor& rows) {
  std::string text = c10::toString(rows.scalar_type());
  for (const auto size : rows.sizes().slice(1)) text.append(" ").append(std::to_string(size));
  return text;
}

/// Throws on all ranks unless all have the same text.
void compare(Collectives& collectives, const std::string& compared, const at::Tensor& mine) {
  const auto all = collectives.exchange(compared + "\n" + shape_of(mine));
  bool alike = true;
  std::vector<std::string> shapes;
  for (const auto& text : all) {
    const auto end = text.find('\n');
    alike = alike && text.substr(0, end) == compared;
    shapes.push_back(text.substr(end + 1));
  }
  if (!alike) throw message::tensors_differ(shapes);
}

class LongerTimeout {
 public:
  LongerTimeout(Collectives& collectives, std::chrono::milliseconds timeout)
      : collectives_(collectives), before_(collectives.set_timeout(timeout)) {}
  ~LongerTimeout() { collectives_.set_timeout(before_); }
  LongerTimeout(const LongerTimeout&) = delete;
  LongerTimeout& operator=(const LongerTimeout&) = delete;

 private:
  Collectives& collectives_;
  std::chrono::milliseconds before_;
};

}  // namespace

void Accelerator::print(std::string_view line) const {
  if (is_main_process()) std::cout << line << std::endl;
}

void Accelerator::print_on_each_machine(std::string_view line) const {
  if (is_local_main_process()) std::cout << line << std::endl;
}

void Accelerator::wait_for_everyone() const { collectives_->barrier(); }

at::Tensor Accelerator::gather(const at::Tensor& mine) const {
  const at::NoGradGuard no_grad;
  const auto rows = (mine.dim() == 0 ? mine.reshape({1}) : mine).detach().resolve_conj().resolve_neg();
  compare(*collectives_, shape_of_row(rows), mine);
  const auto on_host = rows.cpu().contiguous();
  const auto all = collectives_->exchange(std::string(static_cast<const char*>(on_host.const_data_ptr()),
                                                      static_cast<std::size_t>(on_host.nbytes())));

  std::vector<at::Tensor> parts;
  auto sizes = rows.sizes().vec();
  const auto row_numel =
      std::accumulate(sizes.begin() + 1, sizes.end(), std::int64_t{1}, std::multiplies<>());
  const auto row_bytes = row_numel * static_cast<std::int64_t>(rows.element_size());
  for (const auto& bytes : all) {
    sizes[0] = row_bytes == 0 ? 0 : static_cast<std::int64_t>(bytes.size()) / row_bytes;
    parts.push_back(at::empty(sizes, on_host.options()));
    if (!bytes.empty()) std::memcpy(parts.back().mutable_data_ptr(), bytes.data(), bytes.size());
  }
  return at::cat(parts).to(mine.device());
}

std::vector<double> Accelerator::gather(double mine) const {
  std::string bytes(sizeof mine, '\0');
  std::memcpy(bytes.data(), &mine, sizeof mine);
  std::vector<double> values;
  for (const auto& theirs : collectives_->exchange(bytes)) {
    std::memcpy(&values.emplace_back(), theirs.data(), sizeof mine);
  }
  return values;
}

at::Tensor Accelerator::reduce(const at::Tensor& mine, Reduction reduction) const {
  const at::NoGradGuard no_grad;
  compare(*collectives_, shape_of(mine), mine);
  const auto result = mine.detach().clone(at::MemoryFormat::Contiguous);
  collectives_->sum(result)->wait();
  return reduction == Reduction::sum ? result : at::div(result, world_size());
}

double Accelerator::reduce(double mine, Reduction reduction) const {
  const auto all = gather(mine);
  const double sum = std::accumulate(all.begin(), all.end(), 0.0);
  return reduction == Reduction::sum ? sum : sum / world_size();
}

double Accelerator::reduce_mean(double total, double count) const {
  const double all_totals = reduce(total);
  const double all_counts = reduce(count);
  return all_counts == 0 ? std::numeric_limits<double>::quiet_NaN() : all_totals / all_counts;
}

void Accelerator::main_process_first(const std::function<void()>& work,
                                     std::chrono::milliseconds timeout) const {
  const LongerTimeout longer_timeout(*collectives_, timeout);
  Agreement agreement(collectives_);
  for (const bool main_process : {true, false}) {
    if (is_main_process() == main_process) agreement.locally(work);
    (void)agreement.meet({.phase = Phase::main_process_first});
  }
}

}  // namespace lockstep
