#include "lockstep/data/dataset.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "lockstep/base/messages.hpp"
#include "lockstep/data/batch_buffers.hpp"

namespace lockstep {

namespace {

// From here on ATen's gather is as fast on one thread, and uses all it is given.
constexpr std::size_t kLargeBatch = std::size_t{1} << 20;

// Measured to be best for rows of 3 kB.
constexpr std::size_t kRowsAhead = 2;
constexpr std::size_t kBytesAhead = 512;

/// Both contiguous. ATen's gather prepares every row anew, which costs as much as copying a short one.
void copy_rows(const at::Tensor& tensor, std::span<const std::int64_t> indices, const at::Tensor& batch) {
  const std::size_t row_bytes = batch.nbytes() / indices.size();
  const auto* const rows = static_cast<const std::byte*>(tensor.const_data_ptr());
  auto* const copies = static_cast<std::byte*>(batch.mutable_data_ptr());
  const auto row = [&](std::size_t i) { return rows + static_cast<std::size_t>(indices[i]) * row_bytes; };
  for (std::size_t i = 0; i < indices.size(); ++i) {
    // No hardware foresees where a shuffled row begins.
    if (i + kRowsAhead < indices.size()) {
      const std::byte* const ahead = row(i + kRowsAhead);
      for (std::size_t line = 0; line < std::min(row_bytes, kBytesAhead); line += 64) {
        __builtin_prefetch(ahead + line);
      }
    }
    std::memcpy(copies + i * row_bytes, row(i), row_bytes);
  }
}

at::Tensor gather(const at::Tensor& tensor, std::span<const std::int64_t> indices) {
  if (!tensor.defined()) return tensor;
  const auto count = static_cast<std::int64_t>(indices.size());
  const auto rows = [&] {
    auto numbers = at::empty({count}, at::kLong);
    std::ranges::copy(indices, numbers.mutable_data_ptr<std::int64_t>());
    return numbers.to(tensor.device());
  };
  const at::NoGradGuard no_grad;
  if (!tensor.is_cpu()) return at::index_select(tensor, 0, rows());
  c10::DimVector sizes(tensor.sizes());
  sizes.front() = count;
  auto batch = detail::empty_batch(sizes, tensor.scalar_type());
  const std::size_t bytes = batch.nbytes();
  // Of one key set: neither sparse, nor with a conjugation still to be applied.
  const bool plain = tensor.key_set() == batch.key_set();
  const bool in_range = std::ranges::all_of(
      indices, [size = tensor.size(0)](std::int64_t index) { return index >= 0 && index < size; });
  if (plain && in_range && tensor.is_contiguous() && bytes > 0 && bytes < kLargeBatch) {
    copy_rows(tensor, indices, batch);
    return batch;
  }
  return plain ? at::index_select_out(batch, tensor, 0, rows()) : at::index_select(tensor, 0, rows());
}

}  // namespace

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
  return {gather(data_, indices), gather(target_, indices)};
}

}  // namespace lockstep
