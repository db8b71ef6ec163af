#include "lockstep/tensors/backend_scope.hpp"

#include <ATen/Context.h>
#include <torch/csrc/autograd/anomaly_mode.h>

namespace lockstep {

using torch::autograd::AnomalyMode;

BackendScope::BackendScope(const BackendSettings& settings) {
  at::Context& torch = at::globalContext();
  if (settings.tf32) {
    put_back_.push_back(
        [&torch, products = torch.float32MatmulPrecision(), convolutions = torch.allowTF32CuDNN()] {
          torch.setAllowTF32CuBLAS(products != at::Float32MatmulPrecision::HIGHEST);
          if (products == at::Float32MatmulPrecision::MEDIUM) torch.setFloat32MatmulPrecision("medium");
          torch.setAllowTF32CuDNN(convolutions);
        });
    torch.setAllowTF32CuBLAS(*settings.tf32);
    torch.setAllowTF32CuDNN(*settings.tf32);
  }
  if (settings.deterministic_algorithms) {
    put_back_.push_back(
        [&torch, on = torch.deterministicAlgorithms(), warn = torch.deterministicAlgorithmsWarnOnly()] {
          torch.setDeterministicAlgorithms(on, warn);
        });
    torch.setDeterministicAlgorithms(*settings.deterministic_algorithms, /*warn_only=*/false);
  }
  if (settings.cudnn_benchmark) {
    put_back_.push_back([&torch, on = torch.benchmarkCuDNN()] { torch.setBenchmarkCuDNN(on); });
    torch.setBenchmarkCuDNN(*settings.cudnn_benchmark);
  }
  if (settings.anomaly_detection) {
    put_back_.push_back([on = AnomalyMode::is_enabled(), check_nan = AnomalyMode::should_check_nan()] {
      AnomalyMode::set_enabled(on, check_nan);
    });
    AnomalyMode::set_enabled(*settings.anomaly_detection);
  }
}

BackendScope::~BackendScope() {
  for (const auto& put_back : put_back_) put_back();
}

}  // namespace lockstep
