// NCCL, where CMake found the headers of it and of CUDA.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace lockstep {

/// Null where this build has no NCCL.
c10::intrusive_ptr<c10d::Backend> nccl_backend(c10::intrusive_ptr<c10d::Store> store, int rank,
                                               int world_size, std::chrono::milliseconds timeout);

}  // namespace lockstep
