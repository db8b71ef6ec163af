// The part of the Trainer that does not depend on the user's types. Internal: use Trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/planned_run.hpp"
#include "lockstep/config/schedule.hpp"
#include "lockstep/config/train_config.hpp"
#include "lockstep/config/train_state.hpp"
#include "lockstep/data/batch_source.hpp"
#include "lockstep/loop/accumulation_window.hpp"
#include "lockstep/loop/evaluator.hpp"
#include "lockstep/loop/hooks.hpp"
#include "lockstep/loop/optimizer_step.hpp"
#include "lockstep/loop/registered_state.hpp"
#include "lockstep/loop/train_options.hpp"
#include "lockstep/optim/weight_average.hpp"
#include "lockstep/ranks/accelerator.hpp"
#include "lockstep/watch/history.hpp"
#include "lockstep/watch/performance_meter.hpp"
#include "lockstep/watch/run_logger.hpp"

namespace torch::optim {
class Optimizer;
class LRScheduler;
class ReduceLROnPlateauScheduler;
}

namespace lockstep::detail {

/// An Evaluator without its types: runs over the model as it stands.
struct Evaluation {
  std::vector<std::string> sets;
  EvaluatorOptions options;
  std::function<std::map<std::string, std::int64_t>()> set_batches;
  std::function<EvaluationResults(const EvaluationRequest&)> run;
};

class TrainerCore {
 public:
  struct Parts {
    Accelerator& accelerator;
    torch::nn::Module& model;
    std::shared_ptr<torch::nn::Module> objective;  ///< null: none
    torch::optim::Optimizer& optimizer;
    std::optional<double> ema_decay;
    bool ema_warmup;
    bool average_buffers;
    bool flat_parameters;
    bool own_batches;  ///< the source yields this rank's own batches
    RunLogger* logger;
    Hooks hooks;
    Backward backward;             ///< unset: loss.backward()
    OptimizerStep optimizer_step;  ///< unset: optimizer.step()
    std::function<StepOutput(std::int64_t)> step_again;  ///< on a microbatch of the window, from 0
    SourceFacts source;
    std::optional<Evaluation> evaluation;  ///< during training
    std::optional<Evaluation> test;        ///< after it
  };

  explicit TrainerCore(Parts parts);
  ~TrainerCore();

  [[nodiscard]] const TrainState& state() const;
  [[nodiscard]] const History& history() const;
  [[nodiscard]] std::int64_t updates_per_epoch(const std::optional<BatchLimit>& limit) const;
  [[nodiscard]] std::int64_t planned_steps(const TrainConfig& config) const;
  void set_scheduler(Schedule schedule, std::optional<Interval> every);
  void set_scheduler(ScheduleFactory factory, std::optional<Interval> every);
  void set_scheduler(torch::optim::LRScheduler& schedule, Interval every);
  void set_scheduler(torch::optim::ReduceLROnPlateauScheduler& schedule, std::string metric);
  void set_lr(double lr);
  void set_lr(const std::string& group, double lr);
  [[nodiscard]] NamedTensors weights(Weights which) const;
  /// Puts these weights into the model for as long as the result lives.
  [[nodiscard]] std::shared_ptr<void> use(Weights which);
  [[nodiscard]] torch::nn::Module* objective() const;
  [[nodiscard]] const std::optional<EvaluationResults>& test_results() const;
  void register_state(RegisteredState object);

  // One train() call: begin, then windows until finished, then finish; fail on an exception from any of them.
  void begin(const TrainConfig& config, const TrainOptions& options);
  [[nodiscard]] bool finished() const;
  /// Batches of an epoch after TrainConfig::limit_train_batches; unset: as many as there are.
  [[nodiscard]] std::optional<std::int64_t> epoch_limit() const;
  /// Which batches of an epoch this rank reads, and from which one of the source on.
  [[nodiscard]] Shard shard() const;
  [[nodiscard]] std::int64_t first_batch() const;
  /// Every window gets the first batches of epoch 0.
  [[nodiscard]] bool overfits() const;
  /// A window's batches are wanted until it is closed.
  [[nodiscard]] bool keeps_batches() const;
  AccumulationWindow& open_window();
  /// The time since the last lap went into this.
  void lap(Activity activity);
  /// Runs a microbatch's backward pass; `last`: of this rank's window.
  void add(const StepOutput& output, bool last);
  /// `more_data`: this rank's epoch has another batch. Returns whether that of any rank has.
  bool close_window(bool more_data);
  TrainState finish();
  void fail() noexcept;

 private:
  [[noreturn]] void no_data() const;
  [[nodiscard]] PlannedRun planned_run(const TrainConfig& config) const;
  /// Calls the schedule factory, if one waits for a run.
  void make_schedule(const TrainConfig& config);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::detail
