#include "lockstep/tensors/random_state.hpp"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <mutex>

namespace lockstep {
namespace {

std::vector<std::pair<std::string, at::Generator>> generators(at::Device device) {
  auto& context = at::globalContext();
  std::vector<std::pair<std::string, at::Generator>> result;
  result.emplace_back("generator.cpu", context.defaultGenerator(at::kCPU));
  if (device.is_cuda()) result.emplace_back("generator.cuda", context.defaultGenerator(device));
  return result;
}

}  // namespace

NamedTensors random_state(at::Device device) {
  NamedTensors state;
  for (auto& [name, generator] : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    state.emplace_back(name, generator.get_state());
  }
  return state;
}

void set_random_state(const NamedTensors& state, at::Device device) {
  for (auto& [name, generator] : generators(device)) {
    for (const auto& [saved_name, saved] : state) {
      if (saved_name != name) continue;
      const std::lock_guard lock(generator.mutex());
      generator.set_state(saved);
    }
  }
}

}  // namespace lockstep
