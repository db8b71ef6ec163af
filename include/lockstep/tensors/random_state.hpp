// The states of Torch's default generators: what dropout and torch::rand draw from.
#pragma once

#include <c10/core/Device.h>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// The states of the CPU's generator and, if `device` is a CUDA device, of that device's: `generator.cpu`,
/// `generator.cuda`.
[[nodiscard]] NamedTensors random_state(at::Device device);

/// Puts back what random_state() gave.
void set_random_state(const NamedTensors& state, at::Device device);

/// Puts the generators' states back when it goes.
class [[nodiscard]] RandomStateGuard {
 public:
  explicit RandomStateGuard(at::Device device) : device_(device), state_(random_state(device)) {}
  ~RandomStateGuard() { set_random_state(state_, device_); }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  at::Device device_;
  NamedTensors state_;
};

}  // namespace lockstep
