// The mean of several checkpoints' weights.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/optim/weight_average.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// The mean of the weights at `paths`, each a checkpoint or a weights file; of checkpoints the raw or the ema ones.
///
/// Floating-point tensors are summed in double and rounded once, to the type they have; others, such as counters, come
/// from the last path. The weights at one path are in memory at a time, beside the sums.
/// Batch-norm statistics of a mean are a mean of statistics; train or evaluate them anew where that matters.
///
///     save_weights("mean.safetensors", average_weights({"checkpoints/step-00000900", "checkpoints/step-00001000"}));
///
/// Errors: CheckpointError `weights-not-alike`, which names every tensor that differs in name, shape or type; ConfigError
/// `no-averaged-weights`; those of reading.
[[nodiscard]] NamedTensors average_weights(const std::vector<std::filesystem::path>& paths,
                                           Weights weights = Weights::raw);

}  // namespace lockstep
