#include "lockstep/optim/gradient_norm.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/div.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/max.h>
#include <ATen/ops/stack.h>

#include <cmath>

namespace lockstep {
namespace {

constexpr std::int64_t row = 4096;

at::Tensor norm_of(const at::Tensor& gradient) {
  if (gradient.numel() <= row || gradient.scalar_type() == at::kDouble || !gradient.is_contiguous()) {
    return at::linalg_vector_norm(gradient, 2).to(at::kDouble);
  }
  const at::Tensor flat = gradient.view({-1});
  const std::int64_t whole = flat.numel() / row * row;
  const at::Tensor rows =
      at::linalg_vector_norm(flat.narrow(0, 0, whole).view({-1, row}), 2, at::IntArrayRef{1});
  const at::Tensor body = at::linalg_vector_norm(rows.to(at::kDouble), 2);
  if (whole == flat.numel()) return body;
  const at::Tensor tail =
      at::linalg_vector_norm(flat.narrow(0, whole, flat.numel() - whole), 2).to(at::kDouble);
  return at::linalg_vector_norm(at::stack({body, tail}), 2);
}

double combine(const std::vector<at::Tensor>& norms) {
  return norms.empty() ? 0 : at::linalg_vector_norm(at::stack(norms), 2).item<double>();
}

}  // namespace

double gradient_norm(const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const auto& gradient : gradients) norms.push_back(norm_of(gradient));
  return combine(norms);
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
