// The states of Torch's default generators: what dropout and torch::rand draw from.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/MT19937RNGEngine.h>
#include <c10/core/Device.h>

#include <optional>

#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// The states of the CPU's generator and, if `device` is a CUDA device, of that device's: `generator.cpu`,
/// `generator.cuda`.
[[nodiscard]] NamedTensors random_state(at::Device device);

/// Puts back what random_state() gave.
void set_random_state(const NamedTensors& state, at::Device device);

/// Copies of the same generators, at a tenth of what their states as tensors cost: to be made often and put back
/// seldom.
class GeneratorCopies {
 public:
  /// Of nothing.
  GeneratorCopies() = default;
  explicit GeneratorCopies(at::Device device);

  void put_back() const;

 private:
  struct Cpu {
    at::mt19937 engine;
    std::optional<float> next_float_normal_sample;
    std::optional<double> next_double_normal_sample;
  };

  std::optional<Cpu> cpu_;
  at::Generator cuda_;  // undefined where the device is none
};

/// Puts the generators back when it goes.
class [[nodiscard]] RandomStateGuard {
 public:
  explicit RandomStateGuard(at::Device device) : before_(device) {}
  ~RandomStateGuard() { before_.put_back(); }
  RandomStateGuard(const RandomStateGuard&) = delete;
  RandomStateGuard& operator=(const RandomStateGuard&) = delete;

 private:
  GeneratorCopies before_;
};

}  // namespace lockstep
