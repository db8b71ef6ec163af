// What is left of a train() call that is only to show that the program works.
#pragma once

#include <cstdint>

#include "lockstep/config/train_config.hpp"

namespace lockstep {

/// Where a run under TrainConfig::debug begins.
struct DebugStart {
  std::int64_t epoch = 0;              ///< completed
  std::int64_t batch = 0;              ///< of the source, the next one
  std::int64_t batches_per_round = 1;  ///< see lockstep::batches_per_round()
  int ranks = 1;
};

/// `config` with one batch a rank, and the end of the epoch after it as the end of the run, unless it ends earlier.
[[nodiscard]] TrainConfig debug_config(TrainConfig config, const DebugStart& start);

}  // namespace lockstep
