// Values of tensors kept aside, in host memory, and put in their place.
#pragma once

#include <vector>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// Host copies of tensors by name. Memory for one copy, taken at the first keep().
class HostCopy {
 public:
  [[nodiscard]] bool empty() const { return tensors_.empty(); }
  [[nodiscard]] const NamedTensors& tensors() const { return tensors_; }

  /// Takes over the values; names and shapes are the same at every call. Waits for the device.
  void keep(const NamedTensors& tensors);
  void clear() { tensors_.clear(); }

 private:
  NamedTensors tensors_;
};

/// Puts values into tensors of the same names, and what was there back when it goes.
class [[nodiscard]] ValueSwap {
 public:
  ValueSwap(const NamedTensors& values, NamedTensors into);
  ~ValueSwap();
  ValueSwap(const ValueSwap&) = delete;
  ValueSwap& operator=(const ValueSwap&) = delete;

 private:
  NamedTensors into_;
  NamedTensors before_;
};

}  // namespace lockstep
