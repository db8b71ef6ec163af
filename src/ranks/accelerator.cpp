#include "lockstep/ranks/accelerator.hpp"

#include <ATen/Context.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sqrt.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include <cmath>

#include "base/rank_messages.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/config/settings.hpp"
#include "ranks/process_group.hpp"

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
  if (options.rank_timeout <= std::chrono::milliseconds(0)) {
    found.push_back(message::problem_rank_timeout(options.rank_timeout));
  }
  if (options.slice_bytes < 1) found.push_back(message::problem_slice_bytes(options.slice_bytes));
  return found;
}

/// One rank, one CUDA device.
at::Device device_of(const std::optional<at::Device>& asked, int local_rank) {
  const bool cuda = torch::cuda::is_available();
  auto device = asked.value_or(cuda ? at::Device(at::kCUDA) : at::Device(at::kCPU));
  if (!device.is_cuda()) return device;
  if (!device.has_index()) device.set_index(static_cast<at::DeviceIndex>(local_rank));
  if (!cuda || device.index() >= static_cast<int>(torch::cuda::device_count())) {
    throw message::device_not_available(device.str());
  }
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
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
  settings.read(key + ".launch.rank", options.launch.rank);
  settings.read(key + ".launch.world_size", options.launch.world_size);
  settings.read(key + ".launch.local_rank", options.launch.local_rank);
  settings.read(key + ".launch.meeting_point", options.launch.meeting_point);
  auto seconds = std::chrono::duration<double>(options.rank_timeout).count();
  settings.read(key + ".rank_timeout", seconds);
  // A year, since clocks count nanoseconds in 64 bits.
  if (seconds >= 0 && seconds < 365.0 * 86400) {
    options.rank_timeout = std::chrono::milliseconds(std::llround(seconds * 1000));
  } else {
    settings.refuse(key + ".rank_timeout", message::problem_seconds(seconds));
  }
  settings.read(key + ".slice_bytes", options.slice_bytes);
  settings.read(key + ".overlap_sync", options.overlap_sync);
  settings.read(key + ".check_collectives", options.check_collectives);
  auto device = options.device ? std::optional(options.device->str()) : std::nullopt;
  settings.read(key + ".device", device);
  try {
    options.device = device ? std::optional(at::Device(*device)) : std::nullopt;
  } catch (const c10::Error&) {
    settings.refuse(key + ".device", message::problem_device(*device));
  }
}

Accelerator::Accelerator(AcceleratorOptions options) : options_(std::move(options)) {
  if (const auto found = mistakes(options_); !found.empty()) throw message::invalid_settings(found);
  launch_ = find_launch(options_.launch);
  options_.device = device_of(options_.device, launch_.local_rank);
  backend_ = std::make_shared<const BackendScope>(options_.backend);
  settle_vector_mathematics();
  at::manual_seed(options_.seed);
  if (launch_.world_size == 1) {
    collectives_ = std::make_shared<SingleProcess>();
  } else {
    collectives_ = join_ranks(launch_, {.timeout = options_.rank_timeout,
                                        .check_order = options_.check_collectives,
                                        .device = *options_.device});
  }
  agreement_ = std::make_shared<Agreement>(collectives_);
}

}  // namespace lockstep
