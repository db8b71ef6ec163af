#include "lockstep/optim/gradient_norm.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/div.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/max.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <span>

namespace lockstep {
namespace {

constexpr std::int64_t row = 4096;

/// Appends the norms of a gradient's rows, or of all of it where it is short, each [rows] or a scalar.
void append_row_norms(const at::Tensor& gradient, std::vector<at::Tensor>& norms) {
  // Half types would round the norm itself.
  const auto type = gradient.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto norm = [type](const at::Tensor& values, at::OptionalIntArrayRef dim) {
    return at::linalg_vector_norm(values, 2, dim, /*keepdim=*/false, type);
  };
  if (gradient.numel() <= row || type == at::kDouble || !gradient.is_contiguous()) {
    return norms.push_back(norm(gradient, {}));
  }
  const std::int64_t whole = gradient.numel() / row * row;
  if (whole == gradient.numel()) return norms.push_back(norm(gradient.view({-1, row}), at::IntArrayRef{1}));
  const at::Tensor flat = gradient.view({-1});
  norms.push_back(norm(flat.narrow(0, 0, whole).view({-1, row}), at::IntArrayRef{1}));
  norms.push_back(norm(flat.narrow(0, whole, flat.numel() - whole), {}));
}

template <class T>
double sum_of_squares(const at::Tensor& values) {
  double sum = 0;
  for (const auto one : std::span(values.const_data_ptr<T>(), static_cast<std::size_t>(values.numel()))) {
    sum += static_cast<double>(one) * static_cast<double>(one);
  }
  return sum;
}

std::vector<at::Tensor> row_norms(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> norms;
  norms.reserve(2 * gradients.size());
  for (const auto& gradient : gradients) append_row_norms(gradient, norms);
  return norms;
}

/// Of tensors of norms on a device, in double.
at::Tensor combine_on_device(const std::vector<at::Tensor>& norms) {
  std::vector<at::Tensor> totals;
  totals.reserve(norms.size());
  for (const auto& values : norms) totals.push_back(at::linalg_vector_norm(values.to(at::kDouble), 2));
  return at::linalg_vector_norm(at::stack(totals), 2);
}

/// Of tensors of norms, in double.
double combine(const std::vector<at::Tensor>& norms) {
  if (norms.empty()) return 0;
  if (!norms.front().is_cpu()) return combine_on_device(norms).item<double>();
  double sum = 0;
  for (const auto& values : norms) {
    sum += values.scalar_type() == at::kDouble ? sum_of_squares<double>(values)
                                               : sum_of_squares<float>(values);
  }
  return std::sqrt(sum);
}

}  // namespace

double gradient_norm(const std::vector<at::Tensor>& gradients) { return combine(row_norms(gradients)); }

at::Tensor gradient_norm_on_device(const std::vector<at::Tensor>& gradients) {
  const auto norms = row_norms(gradients);
  return norms.front().is_cpu() ? at::scalar_tensor(combine(norms), at::kDouble) : combine_on_device(norms);
}

double exact_gradient_norm(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> sizes;
  for (const auto& gradient : gradients) {
    if (gradient.numel() > 0) sizes.push_back(at::abs(gradient).max().to(at::kDouble));
  }
  // In units of the largest element no square can overflow, not even one of doubles.
  const double unit = sizes.empty() ? 0 : at::stack(sizes).max().item<double>();
  if (unit == 0 || !std::isfinite(unit)) return unit;
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const auto& gradient : gradients) {
    norms.push_back(at::linalg_vector_norm(at::div(gradient.to(at::kDouble), unit), 2));
  }
  return unit * combine(norms);
}

std::vector<std::string> not_finite(const NamedTensors& parameters) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : parameters) {
    const auto& gradient = parameter.grad();
    if (gradient.defined() && !at::isfinite(gradient).all().item<bool>()) names.push_back(name);
  }
  return names;
}

}  // namespace lockstep
