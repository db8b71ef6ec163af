#include "loop/debug_run.hpp"

#include <algorithm>

namespace lockstep {

TrainConfig debug_config(TrainConfig config, const DebugStart& start) {
  config.epochs = std::min(config.epochs.value_or(start.epoch + 1), start.epoch + 1);
  config.limit_train_batches = start.batch + start.batches_per_round;
  config.limit_evaluation_batches = start.ranks;
  // There is but one update to see.
  config.log_every = 1;
  return config;
}

}  // namespace lockstep
