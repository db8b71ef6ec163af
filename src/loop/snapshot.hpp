// What a run must remember to go on as if it had never stopped, and how that becomes a checkpoint and comes back.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "files/checkpoint.hpp"
#include "lockstep/config/monitor.hpp"
#include "lockstep/config/train_state.hpp"
#include "lockstep/data/batch_source.hpp"
#include "lockstep/optim/loss_scaler.hpp"
#include "lockstep/optim/weight_average.hpp"
#include "lockstep/loop/registered_state.hpp"
#include "lockstep/loop/train_options.hpp"
#include "lockstep/ranks/accelerator.hpp"
#include "lockstep/watch/history.hpp"
#include "loop/rate_schedule.hpp"
#include "loop/trained_modules.hpp"
#include "loop/training_totals.hpp"
#include "optim/optimizer_adapter.hpp"

namespace lockstep {

/// The values of a run that are not tensors of the model or the optimizer.
struct Progress {
  std::string run_id;
  std::int64_t save_index = 0;  ///< checkpoints saved so far, over all processes of the run
  TrainState state;
  /// Batches of the source's epoch that were taken: by all ranks together, or of this rank's own ones.
  std::int64_t source_batch = 0;
  std::int64_t loss_unit = 0;       ///< see AccumulationWindow; 0: not known yet
  std::set<std::string> evaluated;  ///< sets that have been evaluated at this very state
  std::set<std::string> pending;    ///< sets that were due and left out because of a stop
  std::optional<Monitor> monitor;   ///< the last one that judged
  RateSchedule rates;
  std::optional<LossScaler> loss_scaler;  ///< of fp16 and fp16_mixed
  TrainingTotals totals;
  History history;
};

/// The live objects a checkpoint covers.
struct Live {
  const TrainedModules& modules;
  OptimizerAdapter& optimizer;
  WeightAverage* average;  ///< null: none
  const Accelerator& accelerator;
  SourceFacts source;  ///< with the batches of an epoch after limit_train_batches
  const std::vector<RegisteredState>& registered;
  nlohmann::json slice_layout;  ///< see SharedRun
  bool own_batches;             ///< see TrainerOptions
};

struct RestoreOptions {
  bool keep_schedule = false;  ///< the given one, not the saved one
  Permission resume_world_size = Permission::refuse;
};

/// What a run of these options begins with; nothing in precisions that do not scale the loss.
std::optional<LossScaler> new_loss_scaler(const AcceleratorOptions& options);

/// What decides whether a run can be continued exactly: data, batching, seeds, precision, versions, threads.
nlohmann::json fingerprint(const Live& live);

Checkpoint take_checkpoint(const Live& live, Progress& progress, const nlohmann::json& config,
                           const nlohmann::json& metadata);

/// Puts a checkpoint into the live objects. All of it is compared first: on a misfit nothing is changed and one
/// CheckpointError `checkpoint-does-not-fit` lists every difference. Differences that only cost bit-exactness go to
/// `warn`. The saved schedule wins over the `given` one, which is said, unless told to keep that. `path` is for messages.
Progress restore_checkpoint(const Live& live, const Checkpoint& checkpoint, const std::string& path,
                            const RateSchedule& given, const RestoreOptions& options,
                            const std::function<void(const std::string&)>& warn);

}  // namespace lockstep
