// What a TrainerCore is made of. The functions of a section are in trainer_core.cpp, or in the file that it names.
#pragma once

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/data/prefetcher.hpp"
#include "lockstep/loop/trainer_core.hpp"
#include "lockstep/tensors/random_state.hpp"
#include "loop/checkpoint_keeper.hpp"
#include "loop/host_copy.hpp"
#include "loop/late_update.hpp"
#include "loop/metric_names.hpp"
#include "loop/optimizer_update.hpp"
#include "loop/rate_schedule.hpp"
#include "loop/save_timer.hpp"
#include "loop/settings_check.hpp"
#include "loop/shared_run.hpp"
#include "loop/snapshot.hpp"
#include "loop/trained_modules.hpp"

namespace lockstep::detail {

using Names = std::set<std::string>;

/// The names that a state gets besides `last`.
struct CheckpointNames {
  bool best = false;
  bool final = false;
};

/// What a save is for.
enum class SaveFor {
  interval,  ///< may be left out while the one before it is being written
  request,   ///< of somebody, or a new best
  end,       ///< of the run: the state must be on the disk when train() returns
  failure,   ///< of a window
};

struct TrainerCore::Impl {
  explicit Impl(Parts given);
  void register_state(const RegisteredState& object);
  void find_idle_parameters();

  // ---- hooks ----

  const HookPoints& hooks() const { return parts.hooks.points(); }
  /// What fails in a hook on one rank is told at the next meeting.
  template <class Function, class... Given>
  void call(const std::vector<Function>& functions, const Given&... given) {
    if (functions.empty()) return;
    agreement.locally([&] {
      for (const auto& function : functions) function(view, given...);
    });
  }
  /// Tells all ranks what hooks of any have asked for. A stop is taken up here, the rest returned.
  RunRequests settle_requests();
  /// The error under way goes on, whatever hooks do about it.
  void tell_of_error() noexcept;
  /// Unset if there is nothing to call.
  std::function<void()> caller(const std::vector<std::function<void(Run&)>>& functions);
  void tell_of_saves();

  // ---- state ----

  Live live();
  TrainState& state() { return progress.state; }
  bool evaluates() const { return parts.evaluation && config.evaluate_every; }
  bool only_evaluates() const { return config.epochs == 0; }
  bool is_main() const { return parts.accelerator.is_main_process(); }
  /// On all ranks alike, while the folder is open on the main one alone.
  bool saves() const { return !checkpoint_dir.empty() && !only_evaluates(); }
  /// Of what was resumed and planned without it.
  void begin_debugging();

  // ---- talking ----

  void warn(const std::string& text);
  /// What many people want to keep and this run does not, unless its settings show that it is meant.
  void warn_of_surprises();
  void log(const std::string& event, Values values, std::string text, std::vector<Histogram> histograms = {});
  nlohmann::json resolved_config() const;

  // ---- settings ----

  /// The metric that the rates follow, if they follow one.
  std::optional<std::string> scheduled_metric() const;
  void forget_schedule();
  TrainerFacts facts();

  // ---- the end of a run ----

  /// Why the run is over, or `none`.
  EndReason reason() const;
  std::optional<std::string> asked_to_stop() const { return stop ? stop->reason() : std::nullopt; }
  /// Of what the ranks were asked, the first reason; the same on all. Every rank.
  std::optional<std::string> shared_reason(const std::optional<std::string>& asked);
  /// Some rank was asked to stop: all give the same reason.
  void stop_together(const std::optional<std::string>& asked);
  /// A hook on some rank ended the run: all give the same reason.
  void end_together(const std::optional<std::string>& asked);
  /// What the log says about the end of a call.
  std::string end_text() const;

  // ---- ranks ----

  /// A rank without a batch does not call its Step, and the others would wait for it there.
  void refuse_uneven_batch_norm();
  /// Batches of the source that all ranks together take for one microbatch of each.
  std::int64_t batches_per_round() const;
  /// What all ranks must have in common.
  nlohmann::json description();
  /// Reads the folder that rank 0 found, so that all ranks go on from the same state even if a folder looks different to
  /// them.
  std::optional<LatestCheckpoint> find_checkpoint(const TrainOptions& options);
  /// The weights that rank 0 starts from, and random numbers of this rank's own from here on.
  void share_beginnings();

  // ---- checkpoints: trainer_saving.cpp ----

  void resume(const LatestCheckpoint& found, const TrainOptions& options);
  /// Only the main process has read it.
  void share_history();
  /// Reads the best weights from beside the checkpoint that a run goes on from.
  void take_over_best(const LatestCheckpoint& found);
  /// Values of different metrics cannot be compared.
  void forget_best_of_another_monitor();
  Position position() const;
  /// Saves this state unless it is saved already, and gives it its names. What is not done in the background is done when
  /// it returns, on rank 0; the other ranks know of it at the next meeting.
  void save(const CheckpointNames& names, SaveFor purpose);
  static std::vector<std::string> list_of(const CheckpointNames& names);
  void write(const Position& here, const CheckpointNames& names, SaveFor purpose);

  // ---- saves that fail ----

  template <class Work>
  void try_to_save(SaveFor purpose, Work work);
  /// Goes on if the settings and the kind of failure allow it, else throws.
  void save_failed(const std::exception_ptr& failure);
  /// One that was made in the background, found when there is another one to make for `purpose`.
  void earlier_save_failed(const std::exception_ptr& failure, SaveFor purpose);
  void note_skipped_save();
  /// A window failed, and everything is as it was before it: nothing of the run need be lost.
  void save_before_failure() noexcept;

  // ---- evaluation and weights: trainer_evaluation.cpp ----

  Names all_sets() const;
  /// The sets whose interval is over.
  Names due_sets(const TrainState& at, bool updated, bool epoch_ended) const;
  EvaluationResults evaluate(const Evaluation& evaluation, EvaluationRequest request, Weights which);
  /// Evaluates and logs these sets, on the average if there is one.
  Values run_evaluation(const Names& sets);
  /// Tells the schedule and the monitor what concerns them of an evaluation of these sets.
  Verdict judge(const Names& sets, const Values& values);
  void keep_best(Values values);
  Verdict evaluate_now(const Names& sets);
  /// `due`: what a checkpoint is due for, if one is.
  void evaluate_and_save(const Names& sets, const std::optional<SaveFor>& due);
  /// Of a run that is over.
  void evaluate_test();
  /// With rank 0's buffers on every rank.
  std::shared_ptr<void> use_weights(Weights which);
  /// Everything that the best weights cover.
  NamedTensors whole_state() const;

  // ---- the window: trainer_window.cpp ----

  WeightAverage* moved() { return average ? &*average : nullptr; }
  LossScaler* scaler() { return progress.loss_scaler ? &*progress.loss_scaler : nullptr; }
  UpdateSettings update_settings();
  /// After the window was closed.
  UpdateOutcome update(std::int64_t samples_on_all_ranks);
  /// Whether nothing needs to know at the end of this window whether its gradients are finite.
  bool may_be_late(const AgreedWindow& agreed, const RunRequests& requests);
  void launch_late(const AgreedWindow& agreed);
  /// Counts the update before, where that waits for the device. Errors: NonFiniteError, on all ranks.
  void settle_late();
  /// The exception under way may be of the window after it.
  void settle_late_at_failure() noexcept;
  /// A window that was updated from, or skipped.
  void count(const AccumulationWindow& counted, const AgreedWindow& agreed, const UpdateOutcome& outcome);
  void log_skip(const UpdateOutcome& outcome, double loss_scale);
  void put_buffers_back();
  void lap(Activity activity);
  /// Of what the optimizer trains.
  void log_histograms();
  void log_training(double gradient_norm, double loss_scale);
  /// Whether the latest record is of this very moment.
  bool at_epoch_end() const;
  void append_rates(Values& values) const;
  /// Records and logs what the epoch that has just ended came to.
  void record_epoch();

  Parts parts;
  const bool has_hooks = !parts.hooks.empty();
  TrainedModules modules;
  OptimizerAdapter optimizer;
  SharedRun shared;
  Agreement& agreement;
  std::optional<WeightAverage> average;
  std::vector<RegisteredState> registered;
  std::vector<at::Tensor> idle_parameters;  // not the optimizer's
  std::vector<at::Tensor> buffers_before_window;
  GeneratorCopies random_before_window;  // where a failed window could be saved
  std::optional<TorchSchedule> torch_schedule;  // set: progress.rates has no schedule
  ScheduleFactory schedule_factory;             // set: to be called when the next train() call begins
  std::optional<Interval> schedule_factory_every;
  Progress progress;
  Run view;  // what hooks see
  HostCopy best;  // empty: nothing was judged yet, or not in this process
  /// The weights that the run goes on from while the model holds the best ones.
  std::optional<HostCopy> last;
  std::optional<EvaluationResults> test_results;

  // Of the present or last train() call.
  TrainConfig config;
  nlohmann::json metadata;
  nlohmann::json settings;
  StopRequest* stop = nullptr;
  PerformanceMeter meter;
  CheckpointKeeper checkpoints;
  std::filesystem::path checkpoint_dir;
  SaveRequest* save_now = nullptr;
  SaveTimer save_timer{{}};
  std::int64_t skipped_saves = 0;
  std::exception_ptr unsaved;  // why the state that the call ends with is not on the disk
  std::optional<std::string> stop_reason;
  std::optional<std::string> end_reason;  // of a hook
  bool resumes = false;         // it was asked to go on from a checkpoint
  bool resumed = false;         // there was one
  bool some_rank_logs = false;
  bool began = false;           // in an earlier call, or from a checkpoint
  std::optional<AccumulationWindow> window;
  std::optional<LateUpdate> late;  // the one before, where it is not counted yet
  std::optional<NoWorkersScope> no_workers;  // while debugging
};

}  // namespace lockstep::detail
