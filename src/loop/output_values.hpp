// The contract of a StepOutput, checked alike in training and in evaluation.
#pragma once

#include <cstdint>

#include "lockstep/tensors/step_output.hpp"

namespace lockstep {

/// The numbers of a StepOutput.
struct OutputValues {
  std::int64_t samples = 0;
  double loss = 0;  ///< 0 without samples, whatever the Step returned
};

/// Reads them to the host; waits for the device once. Errors: StepError `missing-num-samples`,
/// `negative-num-samples`, `invalid-num-samples`, `undefined-loss`, `loss-not-scalar`, `loss-not-floating`.
[[nodiscard]] OutputValues read_values(const StepOutput& output);

}  // namespace lockstep
