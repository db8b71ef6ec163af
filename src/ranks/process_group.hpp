// The ranks of a run over c10d: Gloo for what is on the CPU, NCCL for what is on CUDA.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <memory>

#include "lockstep/ranks/collectives.hpp"
#include "lockstep/ranks/launch.hpp"

namespace lockstep {

struct GroupOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// See AcceleratorOptions::check_collectives.
  bool check_order = false;
  /// On CUDA: tensors of this device are exchanged too.
  at::Device device = at::kCPU;
  /// Whether sums of half types are tried before they go through float32.
  bool native_half_sums = true;
};

/// Waits for all ranks and connects them. Every rank calls it.
///
/// Errors: RankError `ranks-not-joined`, `rank-taken`, `ranks-differ`.
std::shared_ptr<Collectives> join_ranks(const Launch& launch, const GroupOptions& options = {});

}  // namespace lockstep
