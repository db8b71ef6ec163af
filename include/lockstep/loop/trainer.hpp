// The Trainer: owns the loop over the user's model, data and Step.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/messages.hpp"
#include "lockstep/files/weights_file.hpp"
#include "lockstep/loop/prediction.hpp"
#include "lockstep/loop/trainer_core.hpp"
#include "lockstep/tensors/module_state.hpp"

namespace lockstep {

/// What a Trainer may be given besides what it needs.
template <class Model>
struct TrainerOptions {
  /// Runs as TrainConfig::evaluate_every says; outlives the Trainer.
  EvaluatorRef<Model> evaluator = {};
  /// Runs once after a normal end, on the best weights, or without a monitor on those that are evaluated in training;
  /// outlives the Trainer.
  EvaluatorRef<Model> test = {};
  /// A module of the loss's own, with trainable parameters or buffers: a learned temperature, the weights of several
  /// losses, class centres. The Step captures it; the Trainer moves it, switches its mode with the model's, and saves
  /// it. Its parameters go to the optimizer beside the model's; they are not averaged and not exported.
  std::shared_ptr<torch::nn::Module> objective = nullptr;
  /// Average the weights with this decay, in [0, 1); evaluation during training then uses the average.
  std::optional<double> ema_decay = {};
  /// Start the average with a smaller decay, (1 + n) / (10 + n) at the n-th update. Needs ema_decay.
  bool ema_warmup = false;
  /// Average floating-point buffers too, instead of using the model's own current ones. Needs ema_decay.
  bool average_buffers = false;
  /// Keep parameters and gradients in flat buffers (see ParameterArena) while the Trainer lives: the same results, faster.
  /// Switch it off for a model that relies on where its parameters lie.
  bool flat_parameters = true;
  /// Every rank's source yields batches of its own, from its own files say; else all have the same source, whose batches
  /// are dealt to the ranks in turn.
  bool own_batches = false;
  /// Steps the optimizer in the place of optimizer.step(), for one that evaluates a window several times, as
  /// torch::optim::LBFGS does. The window's batches are kept meanwhile. Not with fp16, whose gradients are scaled.
  OptimizerStep optimizer_step = {};
  /// Outlives the Trainer.
  RunLogger* logger = nullptr;
  /// Code of your own at fixed points of the run, called in this order.
  Hooks hooks = {};
};

/// Trains one model with one optimizer on one source of batches.
///
/// Ownership: keeps a shared_ptr or holder it is given; refers to everything else, which outlives it. The model is moved
/// to the accelerator's device and type. Not thread-safe.
///
/// A module held by shared_ptr, by a holder (TORCH_MODULE) or by reference works alike; the Step always receives the
/// module itself. The source is a DataLoader or any range of batches; with a range that cannot seek, resuming inside an
/// epoch reads and drops batches and is exact only if the range repeats itself, which is said in the log.
template <class Model, class Source, class Step>
class Trainer {
  static_assert(detail::ModuleOf<Model>::ok, "lockstep: the model must be a torch::nn::Module");
  static_assert(BatchRange<Source>,
                "lockstep: batches are read from a DataLoader or a range with begin() and end()");
  // An alias, because a static data member would not be instantiated with the class.
  using Checked = std::bool_constant<check_step<Step, Model, batch_t<Source>>()>;

 public:
  using Options = TrainerOptions<Model>;

  /// Errors: ConfigError `no-trainable-parameter`, `duplicate-parameter`, `foreign-parameter`, `parameter-not-flat`,
  /// `invalid-settings`.
  template <class ModelHandle>
  Trainer(Accelerator& accelerator, ModelHandle&& model, torch::optim::Optimizer& optimizer, Source& source, Step step,
          Options options = {})
      : accelerator_(accelerator),
        model_(detail::hold(model)),
        source_(source),
        step_(std::move(step)),
        evaluator_(options.evaluator.get()),
        core_({.accelerator = accelerator,
               .model = *model_,
               .objective = options.objective,
               .optimizer = optimizer,
               .ema_decay = options.ema_decay,
               .ema_warmup = options.ema_warmup,
               .average_buffers = options.average_buffers,
               .flat_parameters = options.flat_parameters,
               .own_batches = options.own_batches,
               .logger = options.logger,
               .hooks = std::move(options.hooks),
               .backward = backward(),
               .optimizer_step = std::move(options.optimizer_step),
               .step_again =
                   [this](std::int64_t microbatch) {
                     return run_step(microbatch, window_batches_[static_cast<std::size_t>(microbatch)]);
                   },
               .source = source_facts(source, options.own_batches ? 1 : accelerator.world_size()),
               .evaluation = evaluation_with(evaluator_),
               .test = evaluation_with(options.test.get())}) {}
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  /// Windows in an epoch of `limit` batches, the last and shorter one counted; without a limit, of all there are.
  /// Errors: ConfigError `unknown-length`.
  [[nodiscard]] std::int64_t updates_per_epoch(const std::optional<BatchLimit>& limit = {}) const {
    return core_.updates_per_epoch(limit);
  }

  /// All updates `config` allows from the very first, if none is skipped and nothing stops early.
  /// Errors: ConfigError `unknown-length`, for a source of unknown length without max_steps.
  [[nodiscard]] std::int64_t planned_steps(const TrainConfig& config) const { return core_.planned_steps(config); }

  /// The rate at an update is the group's base rate times schedule.factor(count). The count is that of completed updates
  /// or epochs, as `every` says, divided by every.every and rounded down. A Plateau takes its metric's value after each
  /// evaluation instead, and no `every`. Errors: ConfigError `invalid-settings`.
  void set_scheduler(Schedule schedule, std::optional<Interval> every = {}) {
    core_.set_scheduler(std::move(schedule), every);
  }
  /// A schedule made to measure: `factory` is called once, when the next train() call begins, before a
  /// checkpoint is restored, whose schedule wins as usual. Errors: of train(), what it throws, and as above.
  void set_scheduler(ScheduleFactory factory, std::optional<Interval> every = {}) {
    core_.set_scheduler(std::move(factory), every);
  }
  /// A schedule of Torch's own, stepped once every `every`; outlives the Trainer. It writes rates itself, and its state
  /// is private, so that a resumed run goes on with the saved rates and a schedule that begins anew, which is said.
  void set_scheduler(torch::optim::LRScheduler& schedule,
                     Interval every = {.every = 1, .unit = Interval::Unit::step}) {
    core_.set_scheduler(schedule, every);
  }
  /// The same for the metric `set/metric`, after each evaluation of it.
  void set_scheduler(torch::optim::ReduceLROnPlateauScheduler& schedule, std::string metric) {
    core_.set_scheduler(schedule, std::move(metric));
  }

  /// Sets the base rate of every group, or of one by its name. Errors: ConfigError `unknown-group`, `invalid-settings`.
  void set_lr(double lr) { core_.set_lr(lr); }
  void set_lr(const std::string& group, double lr) { core_.set_lr(group, lr); }

  /// Saves the object's state in every checkpoint and puts it back on resume. The object outlives the Trainer; the name
  /// is its own and holds no slash. Errors: ConfigError `invalid-settings`.
  template <Stateful Object>
  void register_state(std::string name, Object& object) {
    core_.register_state(registered_state(std::move(name), object));
  }

  [[nodiscard]] const TrainState& state() const { return core_.state(); }
  /// One record for each completed epoch of the run, resumed ones included.
  [[nodiscard]] const History& history() const { return core_.history(); }
  /// What TrainerOptions::test gave at the end of the last train() call; unset if it has not run.
  [[nodiscard]] const std::optional<EvaluationResults>& test_results() const { return core_.test_results(); }

  /// Trains until a limit is reached, the monitor's patience runs out, a hook ends the run, or a stop is requested; sets
  /// train mode on all modules first. Called again, it goes on from where it stands. Every rank calls it.
  ///
  /// If it throws, parameters, optimizer state, averages, schedule, state() and buffers are as before the window that
  /// failed; with a checkpoint_dir that state is saved as `last`, so that a run goes on where it failed. Errors: ConfigError, StepError, DataError, NonFiniteError, CheckpointError, FileError, and whatever the
  /// user's own code throws.
  TrainState train(const TrainConfig& config, const TrainOptions& options = {}) {
    const c10::AutoGradMode gradients(true);
    try {
      core_.begin(config, options);
      read_first_batches();
      while (!core_.finished()) {
        EpochBatches<Source> batches(source_, core_.state().epoch, core_.first_batch(), core_.epoch_limit(),
                                     core_.shard());
        // Of this rank, and of any: one whose data has ended goes on with empty windows.
        bool more = batches.more();
        bool more_anywhere = true;
        while (more_anywhere && !core_.finished()) {
          AccumulationWindow& window = core_.open_window();
          window_batches_.clear();
          while (more && !window.full()) {
            auto batch = batches.next();
            core_.lap(Activity::data);
            const StepOutput output = run_step(window.microbatches(), batch);
            more = batches.more();
            core_.add(output, window.last() || !more);
            if (core_.keeps_batches()) window_batches_.push_back(std::move(batch));
          }
          more_anywhere = core_.close_window(more);
        }
      }
      return core_.finish();
    } catch (...) {
      core_.fail();
      throw;
    }
  }

  /// Evaluates the current weights on all sets; changes no training bit. Every rank calls it.
  /// Errors: ConfigError `no-evaluator`, `no-averaged-weights`, `no-best-weights`.
  EvaluationResults evaluate(Weights weights = Weights::raw) {
    if (!evaluator_) throw message::no_evaluator();
    return evaluate(*evaluator_, weights);
  }

  /// The same with another Evaluator, over test sets for example.
  EvaluationResults evaluate(ModelEvaluator<Model>& evaluator, Weights weights = Weights::raw) {
    const auto swap = core_.use(weights);
    return evaluator.evaluate(*model_, {.sets = evaluator.set_names(), .objective = core_.objective()});
  }

  /// What `function` returns for every sample of `source`, each once, in their order, on the CPU and on every
  /// rank; see lockstep::predict(). Changes no training bit. Every rank calls it. Errors: those of
  /// lockstep::predict(), ConfigError `no-averaged-weights`, `no-best-weights`.
  ///
  ///     auto classes = trainer.predict(test_loader, [](Net& net, const Example& batch) -> at::Tensor {
  ///       return net.forward(batch.data).argmax(1);
  ///     }, Weights::best);
  template <class AnySource, class Function>
  [[nodiscard]] auto predict(AnySource&& source, Function function, Weights which = Weights::raw) {
    const auto swap = core_.use(which);
    return detail::predict(function, *model_, core_.objective(), source, accelerator_);
  }

  /// The current weights and buffers by name; they share storage with the model where they can.
  /// Errors: ConfigError `no-averaged-weights`, `no-best-weights`.
  [[nodiscard]] NamedTensors weights(Weights which = Weights::raw) const { return core_.weights(which); }

  /// Writes weights(which) to a .safetensors file, atomically. Errors: those of save_weights() and weights().
  void save_model(const std::filesystem::path& path, Weights which = Weights::raw) const {
    if (accelerator_.is_main_process()) save_weights(path, weights(which));
  }

 private:
  using Batch = batch_t<Source>;

  /// On a microbatch of the window, from 0, whose batch is `own` unless all windows get the same ones.
  StepOutput run_step(std::int64_t microbatch, const Batch& own) {
    const auto place = static_cast<std::size_t>(microbatch);
    const Batch& batch = first_batches_.empty() ? own : first_batches_[place % first_batches_.size()];
    if constexpr (Checked::value) {
      return detail::call_step(step_, *model_, batch, accelerator_);
    } else {
      return {};
    }
  }

  /// Those of this rank's first window in epoch 0, if all windows get them.
  void read_first_batches() {
    first_batches_.clear();
    if (!core_.overfits() || core_.finished()) return;
    EpochBatches<Source> batches(source_, 0, 0, core_.epoch_limit(), core_.shard());
    const auto size = static_cast<std::size_t>(accelerator_.options().gradient_accumulation_steps);
    while (first_batches_.size() < size && batches.more()) first_batches_.push_back(batches.next());
  }

  Backward backward() {
    if constexpr (detail::RunsBackward<Step>) {
      return [this](const at::Tensor& loss) { step_.backward(loss); };
    } else {
      return {};
    }
  }

  std::optional<detail::Evaluation> evaluation_with(ModelEvaluator<Model>* evaluator) const {
    if (!evaluator) return {};
    return detail::Evaluation{
        .sets = evaluator->set_names(),
        .options = evaluator->options(),
        .set_batches = [evaluator] { return evaluator->set_batches(); },
        .run = [evaluator, model = model_](const EvaluationRequest& request) {
          return evaluator->evaluate(*model, request);
        }};
  }

  Accelerator& accelerator_;
  std::shared_ptr<Model> model_;
  Source& source_;
  Step step_;
  ModelEvaluator<Model>* evaluator_;
  std::vector<Batch> window_batches_;  // of the window under way, where they are needed again
  std::vector<Batch> first_batches_;   // where all windows get them
  detail::TrainerCore core_;
};

template <class ModelHandle, class Optimizer, class Source, class Step>
Trainer(Accelerator&, ModelHandle&&, Optimizer&, Source&, Step) -> Trainer<module_t<ModelHandle>, Source, Step>;
template <class ModelHandle, class Optimizer, class Source, class Step>
Trainer(Accelerator&, ModelHandle&&, Optimizer&, Source&, Step, TrainerOptions<module_t<ModelHandle>>)
    -> Trainer<module_t<ModelHandle>, Source, Step>;

}  // namespace lockstep
