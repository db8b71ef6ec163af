#include "lockstep/tensors/random_state.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

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

GeneratorCopies::GeneratorCopies(at::Device device) {
  for (auto& [name, generator] : generators(device)) {
    const std::lock_guard lock(generator.mutex());
    if (generator.device().is_cpu()) {
      auto& cpu = *generator.get<at::CPUGeneratorImpl>();
      // Not by its clone(), which seeds an engine first.
      cpu_.emplace(Cpu{cpu.engine(), cpu.next_float_normal_sample(), cpu.next_double_normal_sample()});
    } else {
      cuda_ = generator.clone();
    }
  }
}

void GeneratorCopies::put_back() const {
  if (!cpu_) return;
  for (auto& [name, generator] : generators(cuda_.defined() ? cuda_.device() : at::Device(at::kCPU))) {
    const std::lock_guard lock(generator.mutex());
    if (generator.device().is_cpu()) {
      auto& cpu = *generator.get<at::CPUGeneratorImpl>();
      cpu.set_engine(cpu_->engine);
      cpu.set_next_float_normal_sample(cpu_->next_float_normal_sample);
      cpu.set_next_double_normal_sample(cpu_->next_double_normal_sample);
    } else {
      generator.set_state(cuda_.get_state());
    }
  }
}

}  // namespace lockstep
