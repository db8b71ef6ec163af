#include "lockstep/ranks/accelerator.hpp"

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sqrt.h>
#include <torch/cuda.h>

#include "lockstep/base/messages.hpp"
#include "lockstep/config/settings.hpp"

namespace lockstep {
namespace {

/// MKL sets up its vector mathematics at a process's first call of it. When two threads make that call
/// together, one of them can compute other last bits: with torch 2.13.0, 3 of 110 processes whose first
/// square root was AdamW's, on two threads, ended with other weights; 0 of 110 that had taken one on a single
/// thread before. So one is taken here.
void settle_vector_mathematics() { (void)at::sqrt(at::ones({16})); }

std::vector<std::string> mistakes(const AcceleratorOptions& options) {
  std::vector<std::string> found;
  if (options.gradient_accumulation_steps < 1) {
    found.push_back(message::problem_accumulation(options.gradient_accumulation_steps));
  }
  if (options.loss_scaler) {
    if (!scales_loss(options.precision)) {
      found.push_back(message::problem_loss_scaler(to_string(options.precision)));
    }
    for (auto& problem : problems(*options.loss_scaler)) found.push_back(std::move(problem));
  }
  return found;
}

}  // namespace

void read(Settings& settings, const std::string& key, AcceleratorOptions& options) {
  settings.read(key + ".precision", options.precision);
  settings.read(key + ".gradient_accumulation_steps", options.gradient_accumulation_steps);
  settings.read(key + ".seed", options.seed);
  settings.read(key + ".loss_scaler", options.loss_scaler);
  settings.read(key + ".backend.tf32", options.backend.tf32);
  settings.read(key + ".backend.deterministic_algorithms", options.backend.deterministic_algorithms);
  settings.read(key + ".backend.cudnn_benchmark", options.backend.cudnn_benchmark);
  settings.read(key + ".backend.anomaly_detection", options.backend.anomaly_detection);
  auto device = options.device ? std::optional(options.device->str()) : std::nullopt;
  settings.read(key + ".device", device);
  try {
    options.device = device ? std::optional(at::Device(*device)) : std::nullopt;
  } catch (const c10::Error&) {
    settings.refuse(key + ".device", message::problem_device(*device));
  }
}

Accelerator::Accelerator(AcceleratorOptions options)
    : options_(options), collectives_(std::make_shared<SingleProcess>()) {
  if (const auto found = mistakes(options_); !found.empty()) throw message::invalid_settings(found);
  const bool cuda = torch::cuda::is_available();
  if (!options_.device) options_.device = cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
  if (options_.device->is_cuda()) {
    if (!cuda || options_.device->index() >= static_cast<int>(torch::cuda::device_count())) {
      throw message::device_not_available(options_.device->str());
    }
    if (!options_.device->has_index()) options_.device = at::Device(at::kCUDA, 0);
  }
  backend_ = std::make_shared<const BackendScope>(options_.backend);
  settle_vector_mathematics();
  at::manual_seed(options_.seed);
}

}  // namespace lockstep
