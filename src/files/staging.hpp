// Where a state is copied to before it is written, so that training can go on.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "files/checkpoint.hpp"

namespace lockstep {

/// Memory in large pages, where the system gives them, that is used again for each state: only the first copy pays for
/// fresh pages. Grows as needed and gives nothing back while it lives.
class Staging {
 public:
  Staging() = default;
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// A checkpoint of the same bytes whose tensors lie in host memory here, contiguous; valid until the next call. What has
  /// no bytes, or what no file can hold, a sparse tensor say, is left as it is: for the writer to refuse. Waits for the device. Errors:
  /// std::bad_alloc.
  Checkpoint stage(Checkpoint checkpoint);

 private:
  void reserve(std::size_t size);
  /// The same for what is copied from CUDA devices.
  void reserve_pinned(std::size_t size);

  std::byte* memory_ = nullptr;
  std::size_t capacity_ = 0;
  at::Tensor pinned_;
};

}  // namespace lockstep
