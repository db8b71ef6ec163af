// Torch's process-wide switches, changed for as long as an object lives.
#pragma once

#include <functional>
#include <optional>
#include <vector>

namespace lockstep {

/// What is not set stays as Torch has it.
struct BackendSettings {
  /// Matrix products and convolutions of fp32 tensors on CUDA may round their inputs to 10 bits of mantissa:
  /// several times faster from the A100 on. Torch: off in matrix products, on in convolutions.
  std::optional<bool> tf32 = {};
  /// Operations that would give other bits from run to run take another way, or throw where there is none.
  /// Slower; cuBLAS also wants the environment variable CUBLAS_WORKSPACE_CONFIG=:4096:8. Torch: off.
  std::optional<bool> deterministic_algorithms = {};
  /// cuDNN times its convolutions at each new shape and keeps the fastest: worth it for batches of one shape,
  /// and other bits from run to run. Torch: off.
  std::optional<bool> cudnn_benchmark = {};
  /// A backward pass that makes a NaN throws, naming the operation. Several times slower; for looking for
  /// mistakes. Torch: off.
  std::optional<bool> anomaly_detection = {};
};

/// Sets what is given, for the whole process; puts back what was there when it goes. Scopes must nest.
class [[nodiscard]] BackendScope {
 public:
  explicit BackendScope(const BackendSettings& settings);
  ~BackendScope();
  BackendScope(const BackendScope&) = delete;
  BackendScope& operator=(const BackendScope&) = delete;

 private:
  std::vector<std::function<void()>> put_back_;
};

}  // namespace lockstep
