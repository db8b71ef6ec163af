#include "lockstep/ranks/accelerator.hpp"

#include <ATen/Context.h>
#include <torch/cuda.h>

#include "lockstep/base/messages.hpp"

namespace lockstep {

Accelerator::Accelerator(AcceleratorOptions options)
    : options_(options), collectives_(std::make_shared<SingleProcess>()) {
  if (options_.gradient_accumulation_steps < 1) {
    throw message::invalid_settings({message::problem_accumulation(options_.gradient_accumulation_steps)});
  }
  const bool cuda = torch::cuda::is_available();
  if (!options_.device) options_.device = cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (options_.device->is_cuda()) {
    if (!cuda || options_.device->index() >= static_cast<int>(torch::cuda::device_count())) {
      throw message::device_not_available(options_.device->str());
    }
    if (!options_.device->has_index()) options_.device = at::Device(at::kCUDA, 0);
  }
  at::manual_seed(options_.seed);
}

}  // namespace lockstep
