// Which weights of a checkpoint: --weights.
#pragma once

#include <CLI/CLI.hpp>

#include "lockstep/optim/weight_average.hpp"

namespace lockstep::cli {

void add_weights_option(CLI::App& command, Weights& weights);

}  // namespace lockstep::cli
