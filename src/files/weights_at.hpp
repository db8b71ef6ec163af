// Weights from wherever they are kept.
#pragma once

#include <filesystem>

#include "lockstep/optim/weight_average.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace lockstep {

/// The weights in a file, or the raw or ema ones of a checkpoint, all of which is verified.
/// Errors: those of read_weights() and read_checkpoint(); ConfigError `no-averaged-weights`.
NamedTensors weights_at(const std::filesystem::path& path, Weights which);

}  // namespace lockstep
