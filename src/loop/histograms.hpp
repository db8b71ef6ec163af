// Distributions of tensors, for the log.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/watch/histogram.hpp"

namespace lockstep {

/// How the tensor's values fall into default_bucket_limits(), without the empty buckets at both ends; values that are not
/// finite are left out. Reads the tensor to the host.
[[nodiscard]] Histogram histogram(std::string name, const at::Tensor& tensor);

}  // namespace lockstep
