#include "lockstep/data/dataset.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/messages.hpp"

namespace lockstep {

TensorDataset::TensorDataset(at::Tensor data, at::Tensor target)
    : data_(std::move(data)), target_(std::move(target)) {
  const auto rows = [](const at::Tensor& tensor) {
    return tensor.defined() && tensor.dim() > 0 ? tensor.size(0) : -1;
  };
  if (rows(data_) < 0 || (target_.defined() && rows(target_) != rows(data_))) {
    throw message::rows_differ(rows(data_), rows(target_));
  }
}

Example TensorDataset::get_batch(std::span<const std::int64_t> indices) const {
  auto rows = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), rows.mutable_data_ptr<std::int64_t>());
  const auto gather = [&rows](const at::Tensor& tensor) {
    return tensor.defined() ? at::index_select(tensor, 0, rows.to(tensor.device())) : at::Tensor();
  };
  return {gather(data_), gather(target_)};
}

}  // namespace lockstep
