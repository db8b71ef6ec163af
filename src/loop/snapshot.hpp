// What a run must remember to go on as if it had never stopped, and how that becomes a checkpoint and comes back.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "files/checkpoint.hpp"
#include "lockstep/config/train_state.hpp"
#include "lockstep/config/warmup_decay.hpp"
#include "lockstep/data/batch_source.hpp"
#include "lockstep/optim/weight_average.hpp"
#include "lockstep/ranks/accelerator.hpp"
#include "lockstep/tensors/metric_totals.hpp"
#include "optim/optimizer_adapter.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// The values of a run that are not tensors of the model or the optimizer.
struct Progress {
  std::string run_id;
  std::int64_t save_index = 0;  ///< checkpoints saved so far, over all processes of the run
  TrainState state;
  std::int64_t loss_unit = 0;       ///< see AccumulationWindow; 0: not known yet
  bool evaluated = false;           ///< an evaluation has been made at this very state
  bool evaluation_pending = false;  ///< one was due and left out because of a stop
  std::optional<WarmupDecay> schedule;
  MetricTotals log_totals;  ///< since the last training log line
};

/// The live objects a checkpoint covers.
struct Live {
  torch::nn::Module& module;
  OptimizerAdapter& optimizer;
  WeightAverage* average;  ///< null: none
  const Accelerator& accelerator;
  const SourceFacts& source;
};

/// What decides whether a run can be continued exactly: data, batching, seeds, precision, versions, threads.
nlohmann::json fingerprint(const Live& live);

Checkpoint take_checkpoint(const Live& live, Progress& progress, const nlohmann::json& config,
                           const nlohmann::json& metadata);

/// Puts a checkpoint into the live objects. All of it is compared first: on a misfit nothing is changed and one
/// CheckpointError `checkpoint-does-not-fit` lists every difference. Differences that only cost bit-exactness go to
/// `warn`. `path` is for messages.
Progress restore_checkpoint(const Live& live, const Checkpoint& checkpoint, const std::string& path,
                            const std::function<void(const std::string&)>& warn);

}  // namespace lockstep
