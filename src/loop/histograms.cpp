#include "loop/histograms.hpp"

#include <ATen/core/Scalar.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/masked_select.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace lockstep {

Histogram histogram(std::string name, const at::Tensor& tensor) {
  const std::vector<double>& limits = default_bucket_limits();
  static const at::Tensor limits_tensor = at::tensor(limits, at::kDouble);

  Histogram result{.name = std::move(name)};
  const at::Tensor all = tensor.detach().to(at::kCPU, at::kDouble).reshape({-1});
  const at::Tensor values = at::masked_select(all, at::isfinite(all));
  if (values.numel() == 0) return result;
  result.min = values.min().item<double>();
  result.max = values.max().item<double>();
  result.num = static_cast<double>(values.numel());
  result.sum = values.sum().item<double>();
  result.sum_squares = values.square().sum().item<double>();

  // `right`: a value that is a limit belongs to the bucket that begins there.
  const at::Tensor buckets = at::bucketize(values, limits_tensor, /*out_int32=*/false, /*right=*/true)
                                 .clamp_max(static_cast<std::int64_t>(limits.size()) - 1);
  const at::Tensor counts = at::bincount(buckets);
  const std::int64_t first = buckets.min().item<std::int64_t>();
  for (std::int64_t i = first; i < counts.numel(); ++i) {
    result.bucket_limits.push_back(limits[static_cast<std::size_t>(i)]);
    result.counts.push_back(static_cast<double>(counts[i].item<std::int64_t>()));
  }
  return result;
}

}  // namespace lockstep
