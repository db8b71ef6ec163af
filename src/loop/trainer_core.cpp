#include "lockstep/loop/trainer_core.hpp"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <utility>

#include "config/json.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/optim/parameter_groups.hpp"
#include "lockstep/tensors/random_state.hpp"
#include "loop/checkpoint_keeper.hpp"
#include "loop/histograms.hpp"
#include "loop/host_copy.hpp"
#include "loop/metric_names.hpp"
#include "loop/optimizer_update.hpp"
#include "loop/rate_schedule.hpp"
#include "loop/settings_check.hpp"
#include "loop/snapshot.hpp"
#include "loop/trained_modules.hpp"
#include "tensors/copy_by_name.hpp"

namespace lockstep::detail {
namespace {

using nlohmann::json;

std::string new_run_id() {
  std::random_device random;
  std::string id;
  while (id.size() < 16) id += "0123456789abcdef"[random() % 16];
  return id;
}

/// What the average runs over.
NamedTensors averaged_tensors(const torch::nn::Module& model, bool with_buffers) {
  NamedTensors tensors = trainable_parameters(model);
  if (!with_buffers) return tensors;
  for (const auto& buffer : model.named_buffers()) {
    if (buffer.value().defined() && buffer.value().is_floating_point()) {
      tensors.emplace_back(buffer.key(), buffer.value());
    }
  }
  return tensors;
}

using Names = std::set<std::string>;
}  // namespace

struct TrainerCore::Impl {
  explicit Impl(Parts given)
      : parts(std::move(given)),
        modules(parts.model, parts.objective.get(), parts.accelerator.placement()),
        optimizer(parts.optimizer, modules.parameters(),
                  parts.flat_parameters ? ParameterLayout::flat : ParameterLayout::separate) {
    if ((parts.average_buffers || parts.ema_warmup) && !parts.ema_decay) {
      const auto* setting = parts.average_buffers ? "average_buffers" : "ema_warmup";
      throw message::invalid_settings({message::problem_without_ema(setting)});
    }
    if (parts.ema_decay) {
      average.emplace(WeightAverageOptions{.decay = *parts.ema_decay, .warmup = parts.ema_warmup},
                      averaged_tensors(parts.model, parts.average_buffers), &optimizer.arena());
    }
    find_idle_parameters();
    for (const auto& buffer : modules.buffers()) buffers_before_window.push_back(at::empty_like(buffer));
    progress.run_id = new_run_id();
    progress.loss_scaler = new_loss_scaler(parts.accelerator.options());
  }

  void find_idle_parameters() {
    std::set<const at::TensorImpl*> trained;
    for (const auto& parameter : optimizer.parameters()) trained.insert(parameter.second.unsafeGetTensorImpl());
    for (const auto& [name, parameter] : modules.parameters()) {
      if (!trained.contains(parameter.unsafeGetTensorImpl())) idle_parameters.push_back(parameter);
    }
  }

  Live live() {
    SourceFacts source = parts.source;
    source.batches = limited(config.limit_train_batches, source.batches);
    return {modules, optimizer, average ? &*average : nullptr, parts.accelerator, source, registered};
  }
  TrainState& state() { return progress.state; }
  bool evaluates() const { return parts.evaluation && config.evaluate_every; }
  bool only_evaluates() const { return config.epochs == 0; }

  // ---- talking ----

  void warn(const std::string& text) {
    if (!parts.accelerator.is_main_process()) return;
    if (parts.logger) {
      parts.logger->warn(text);
    } else {
      warn_on_console(text);
    }
  }

  void log(const std::string& event, Values values, std::string text, std::vector<Histogram> histograms = {}) {
    if (!parts.logger) return;
    const auto& s = progress.state;
    parts.logger->log({.event = event,
                       .step = s.step,
                       .epoch = s.epoch,
                       .samples = s.samples,
                       .values = std::move(values),
                       .text = std::move(text),
                       .histograms = std::move(histograms)});
  }

  json resolved_config() const {
    auto groups = json::array();
    for (std::size_t i = 0; i < optimizer.group_names().size(); ++i) {
      groups.push_back({{"name", optimizer.group_names()[i]}, {"base_lr", optimizer.base_lr(i)}});
    }
    return {{"train", to_json(config)},
            {"optimizer", {{"kind", optimizer.kind()}, {"groups", std::move(groups)}}},
            {"schedule", progress.rates.schedule ? to_json(*progress.rates.schedule) : json(nullptr)},
            {"schedule_every", to_json(progress.rates.every)},
            {"ema_decay", or_null(parts.ema_decay)},
            {"ema_warmup", parts.ema_warmup},
            {"average_buffers", parts.average_buffers},
            {"settings", settings}};
  }

  // ---- settings ----

  /// The metric that the rates follow, if they follow one.
  std::optional<std::string> scheduled_metric() const {
    return torch_schedule ? torch_schedule->metric() : progress.rates.metric();
  }

  TrainerFacts facts() const {
    return {.evaluation_sets = parts.evaluation ? std::optional(parts.evaluation->sets) : std::nullopt,
            .averages = average.has_value(),
            .has_schedule = torch_schedule || progress.rates.schedule,
            .scheduled_metric = scheduled_metric()};
  }

  // ---- checkpoints ----

  void resume(const LatestCheckpoint& found, const TrainOptions& options) {
    progress = restore_checkpoint(live(), found.checkpoint, found.directory.string(), progress.rates,
                                  options.keep_schedule || torch_schedule,
                                  [this](const std::string& text) { warn(text); });
    if (!parts.source.exact_resume && progress.state.next_batch > 0) warn(message::warning_source_reread());
    checkpoints.saved_before(position(), found.directory);
    resumed = true;
    take_over_best(found);
  }

  /// Reads the best weights from beside the checkpoint that a run goes on from.
  void take_over_best(const LatestCheckpoint& found) {
    best.clear();
    if (!progress.state.best_step || !progress.monitor) return;
    const auto take = [&](const Checkpoint& checkpoint) {
      if (checkpoint.manifest.at("state").at("step") != *progress.state.best_step ||
          checkpoint.manifest.at("run_id") != progress.run_id) {
        return false;
      }
      NamedTensors tensors =
          average && !is_raw(progress.monitor->metric()) && !checkpoint.ema.empty() ? checkpoint.ema : checkpoint.model;
      tensors.insert(tensors.end(), checkpoint.objective.begin(), checkpoint.objective.end());
      best.keep(tensors);
      return true;
    };
    try {
      if (take(read_checkpoint(found.directory.parent_path() / "best", parts.accelerator.rank()))) return;
    } catch (const CheckpointError&) {
      // Said below: a run can do without its best weights until there are better ones.
    }
    if (!take(found.checkpoint)) warn(message::warning_best_absent(*progress.state.best_step));
  }

  /// Values of different metrics cannot be compared.
  void forget_best_of_another_monitor() {
    if (!config.monitor) return;
    const auto& before = progress.monitor;
    if (before && progress.state.best_step &&
        (before->metric() != config.monitor->metric() ||
         before->options().direction != config.monitor->options().direction)) {
      warn(message::warning_another_monitor(before->metric(), config.monitor->metric()));
      progress.state.best_metric = {};
      progress.state.best_step = {};
      progress.state.evaluations_without_improvement = 0;
      best.clear();
    }
    progress.monitor = config.monitor;
  }

  Position position() const {
    Position here{progress.state, progress.evaluated, progress.pending};
    here.state.end = EndReason::none;
    here.state.stop_reason = {};
    return here;
  }

  /// Saves this state unless it is saved already, and gives it its names.
  void save(const CheckpointNames& names) {
    if (!checkpoints.is_open()) return;
    const Position here = position();
    if (!checkpoints.is_saved(here)) {
      ++progress.save_index;
      const TrainState full = std::exchange(progress.state, here.state);
      const Checkpoint checkpoint = take_checkpoint(live(), progress, resolved_config(), metadata);
      progress.state = full;
      const auto& directory = checkpoints.save(here, checkpoint);
      lap(Activity::checkpoint);
      log("checkpoint", {}, directory.string());
    }
    checkpoints.name(names, config.keep_checkpoints, progress.run_id);
  }

  /// A window failed, and everything is as it was before it: nothing of the run need be lost.
  void save_before_failure() noexcept {
    if (!checkpoints.is_open()) return;
    try {
      set_random_state(random_before_window, parts.accelerator.device());
      save({});
    } catch (const std::exception& error) {
      warn(message::warning_not_saved(error.what()));
    }
  }

  // ---- evaluation ----

  Names all_sets() const {
    return evaluates() ? Names(parts.evaluation->sets.begin(), parts.evaluation->sets.end()) : Names();
  }

  /// The sets whose interval is over.
  Names due_sets(bool updated, bool epoch_ended) const {
    Names due;
    if (!evaluates()) return due;
    for (const auto& set : parts.evaluation->sets) {
      const auto& own = parts.evaluation->options.every;
      const auto found = own.find(set);
      const Interval& interval = found == own.end() ? *config.evaluate_every : found->second;
      if (interval.due(progress.state.step, updated, progress.state.epoch, epoch_ended)) due.insert(set);
    }
    return due;
  }

  /// Evaluates and logs these sets, on the average if there is one.
  Values run_evaluation(const Names& sets) {
    const EvaluationRequest request{.sets = {sets.begin(), sets.end()},
                                    .limit_batches = config.limit_evaluation_batches,
                                    .objective = modules.objective()};
    Values values;
    {
      const auto swap = average ? use_weights(Weights::ema) : nullptr;
      append(values, "", parts.evaluation->run(request));
    }
    if (config.evaluate_raw) append(values, raw_prefix, parts.evaluation->run(request));
    lap(Activity::evaluate);
    log("evaluate", values, {});
    return values;
  }

  /// Tells the schedule and the monitor what concerns them of an evaluation of these sets.
  Verdict judge(const Names& sets, const Values& values) {
    if (const auto metric = scheduled_metric(); metric && sets.contains(set_of(*metric))) {
      const double value = value_of(*metric, values);
      torch_schedule ? torch_schedule->observe(value) : progress.rates.observe(value);
    }
    if (!config.monitor || !sets.contains(set_of(config.monitor->metric()))) return {};
    const Verdict verdict = config.monitor->judge(value_of(config.monitor->metric(), values), state());
    if (verdict.improved) keep_best(values);
    return verdict;
  }

  void keep_best(Values values) {
    NamedTensors tensors = whole_state();
    if (average && !is_raw(config.monitor->metric())) tensors = average->over(std::move(tensors));
    best.keep(tensors);
    for (auto& value : values) value.first = "best/" + value.first;
    log("best", std::move(values), {});
  }

  Verdict evaluate_now(const Names& sets) {
    const Values values = run_evaluation(sets);
    progress.evaluated.insert(sets.begin(), sets.end());
    for (const auto& set : sets) progress.pending.erase(set);
    return judge(sets, values);
  }

  void evaluate_and_save(const Names& sets, bool checkpoint_due) {
    Verdict verdict;
    if (!sets.empty()) verdict = evaluate_now(sets);
    if (checkpoint_due || verdict.improved) save({.best = verdict.improved});
  }

  /// Of a run that is over.
  void evaluate_test() {
    if (!parts.test) return;
    const auto& test = *parts.test;
    const auto weights = use_weights(!best.empty() ? Weights::best : average ? Weights::ema : Weights::raw);
    test_results = test.run({.sets = test.sets, .objective = modules.objective()});
    Values values;
    append(values, "", *test_results);
    log("test", std::move(values), {});
  }

  std::shared_ptr<void> use_weights(Weights which) {
    switch (which) {
      case Weights::raw:
        break;
      case Weights::ema:
        if (!average) throw message::no_averaged_weights();
        optimizer.tie();
        return std::make_shared<WeightAverage::Swap>(*average);
      case Weights::best:
        if (best.empty()) throw message::no_best_weights();
        return std::make_shared<ValueSwap>(best.tensors(), whole_state());
    }
    return nullptr;
  }

  /// Everything that the best weights cover.
  NamedTensors whole_state() const {
    NamedTensors state = modules.model_state();
    for (auto& tensor : modules.objective_state()) state.push_back(std::move(tensor));
    return state;
  }

  // ---- the window ----

  void put_buffers_back() {
    const c10::AutoGradMode no_grad(false);
    if (!modules.buffers().empty()) at::_foreach_copy_(modules.buffers(), buffers_before_window);
  }

  void lap(Activity activity) {
    if (parts.logger) meter.lap(activity);
  }

  /// Of what the optimizer trains.
  void log_histograms() {
    if (!parts.logger) return;
    std::vector<Histogram> histograms;
    for (const auto& member : optimizer.arena().members()) {
      const auto& [name, parameter] = std::tie(member.name, member.parameter);
      histograms.push_back(histogram("weights/" + name, parameter));
      if (member.touched) histograms.push_back(histogram("gradients/" + name, parameter.grad()));
    }
    log("histograms", {}, {}, std::move(histograms));
  }

  void log_training(double gradient_norm, double loss_scale) {
    if (!parts.logger) return progress.log_totals.clear();
    Values values;
    for (auto& [name, mean] : progress.log_totals.means()) values.emplace_back("train/" + name, mean);
    const auto& groups = optimizer.group_names();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      values.emplace_back(groups.size() == 1 ? "lr" : "lr/" + groups[i], optimizer.rate(i));
    }
    values.emplace_back("grad_norm", gradient_norm);
    if (progress.loss_scaler) values.emplace_back("loss_scale", loss_scale);
    for (auto& value : meter.take(progress.state.step, progress.state.samples)) values.push_back(std::move(value));
    log("train", std::move(values), {});
    progress.log_totals.clear();
  }

  /// Why the run is over, or `none`.
  EndReason reason() const {
    const auto& s = progress.state;
    if (stop_reason) return EndReason::stop_request;
    if (config.max_steps && s.step >= *config.max_steps) return EndReason::max_steps;
    if (config.epochs && s.epoch >= *config.epochs) return EndReason::epochs;
    if (config.monitor && config.monitor->options().patience &&
        s.evaluations_without_improvement >= *config.monitor->options().patience) {
      return EndReason::early_stop;
    }
    return EndReason::none;
  }

  Vote meet(Phase phase, std::int64_t samples) {
    const auto asked = stop ? stop->reason() : std::nullopt;
    const Vote agreed =
        parts.accelerator.collectives()
            .vote({.phase = phase, .stop = asked.has_value(), .samples = samples})
            .front();
    if (agreed.stop) stop_reason = asked.value_or("another rank was asked to stop");
    return agreed;
  }

  Parts parts;
  TrainedModules modules;
  OptimizerAdapter optimizer;
  std::optional<WeightAverage> average;
  std::vector<RegisteredState> registered;
  std::vector<at::Tensor> idle_parameters;  // not the optimizer's
  std::vector<at::Tensor> buffers_before_window;
  NamedTensors random_before_window;  // where a failed window could be saved
  std::optional<TorchSchedule> torch_schedule;  // set: progress.rates has no schedule
  Progress progress;
  HostCopy best;  // empty: nothing was judged yet, or not in this process
  /// The weights that the run goes on from while the model holds the best ones.
  std::optional<HostCopy> last;
  std::optional<EvaluationResults> test_results;

  // Of the present or last train() call.
  TrainConfig config;
  json metadata;
  json settings;
  StopRequest* stop = nullptr;
  PerformanceMeter meter;
  CheckpointKeeper checkpoints;
  std::optional<std::string> stop_reason;
  bool resumed = false;
  std::optional<AccumulationWindow> window;
};

TrainerCore::TrainerCore(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}
TrainerCore::~TrainerCore() = default;

const TrainState& TrainerCore::state() const { return impl_->progress.state; }

std::int64_t TrainerCore::updates_per_epoch(const std::optional<BatchLimit>& limit) const {
  const auto batches = limited(limit, impl_->parts.source.batches);
  if (!batches) throw message::unknown_length();
  const auto size = impl_->parts.accelerator.options().gradient_accumulation_steps;
  return (*batches + size - 1) / size;
}

std::int64_t TrainerCore::planned_steps(const TrainConfig& config) const {
  const bool known = limited(config.limit_train_batches, impl_->parts.source.batches).has_value();
  if (config.max_steps && !(known && config.epochs)) return *config.max_steps;
  const std::int64_t all = updates_per_epoch(config.limit_train_batches) * config.epochs.value_or(0);
  return config.max_steps ? std::min(all, *config.max_steps) : all;
}

void TrainerCore::set_scheduler(Schedule schedule, std::optional<Interval> every) {
  auto found = problems(schedule);
  if (every && schedule.plateau()) found.push_back(message::problem_plateau_interval());
  if (every && every->every < 1) found.push_back(message::problem_schedule_interval(every->every));
  if (!found.empty()) throw message::invalid_settings(found);
  impl_->torch_schedule.reset();
  auto& rates = impl_->progress.rates = {.schedule = std::move(schedule)};
  if (every) rates.every = *every;
}

void TrainerCore::set_scheduler(torch::optim::LRScheduler& schedule, Interval every) {
  if (every.every < 1) throw message::invalid_settings({message::problem_schedule_interval(every.every)});
  impl_->progress.rates = {};
  impl_->torch_schedule.emplace(schedule, every);
  impl_->warn(message::warning_torch_schedule());
}

void TrainerCore::set_scheduler(torch::optim::ReduceLROnPlateauScheduler& schedule, std::string metric) {
  impl_->progress.rates = {};
  impl_->torch_schedule.emplace(schedule, std::move(metric));
  impl_->warn(message::warning_torch_schedule());
}

void TrainerCore::set_lr(double lr) {
  for (const auto& group : impl_->optimizer.group_names()) set_lr(group, lr);
}

void TrainerCore::set_lr(const std::string& group, double lr) {
  if (!std::isfinite(lr) || lr < 0) throw message::invalid_settings({message::problem_lr(lr)});
  const auto& groups = impl_->optimizer.group_names();
  const auto found = std::find(groups.begin(), groups.end(), group);
  if (found == groups.end()) throw message::unknown_group(group, groups);
  const auto index = static_cast<std::size_t>(found - groups.begin());
  impl_->optimizer.set_base_lr(index, lr);
  if (impl_->torch_schedule) impl_->optimizer.set_rate(index, lr);
}

NamedTensors TrainerCore::weights(Weights which) const {
  const auto& run = *impl_;
  switch (which) {
    case Weights::raw:
      break;
    case Weights::ema:
      if (!run.average) throw message::no_averaged_weights();
      return run.average->over(run.modules.model_state());
    case Weights::best: {
      if (run.best.empty()) throw message::no_best_weights();
      NamedTensors tensors = run.best.tensors();
      tensors.resize(run.modules.model_state().size());  // without the objective's
      return tensors;
    }
  }
  return run.modules.model_state();
}

std::shared_ptr<void> TrainerCore::use(Weights which) { return impl_->use_weights(which); }

torch::nn::Module* TrainerCore::objective() const { return impl_->modules.objective(); }

const std::optional<EvaluationResults>& TrainerCore::test_results() const { return impl_->test_results; }

void TrainerCore::register_state(RegisteredState object) {
  auto& registered = impl_->registered;
  const bool taken = std::any_of(registered.begin(), registered.end(),
                                 [&](const auto& other) { return other.name == object.name; });
  if (taken || object.name.empty() || object.name.find('/') != std::string::npos) {
    throw message::invalid_settings({message::problem_registered_name(object.name, taken)});
  }
  registered.push_back(std::move(object));
}

void TrainerCore::begin(const TrainConfig& config, const TrainOptions& options) {
  auto& run = *impl_;
  if (const auto found = problems(config, options, run.facts()); !found.empty())
    throw message::invalid_settings(found);
  run.config = config;
  run.metadata = options.metadata;
  run.settings = options.settings.empty() ? json(nullptr) : json::parse(options.settings);
  run.stop = options.stop;
  run.stop_reason = {};
  run.resumed = false;
  run.test_results = {};
  run.state().end = EndReason::none;
  run.state().stop_reason = {};
  if (run.last) {
    copy_by_name(run.last->tensors(), run.whole_state());
    run.last = {};
  }

  if (!options.checkpoint_dir.empty() && run.parts.accelerator.is_main_process() && !run.only_evaluates()) {
    run.checkpoints.open(options.checkpoint_dir);
  }
  const auto found = CheckpointKeeper::find(options, run.parts.accelerator.rank(),
                                            [&run](const std::string& text) { run.warn(text); });
  if (run.checkpoints.is_open()) {
    const auto run_id = found ? found->checkpoint.manifest.at("run_id").get<std::string>() : run.progress.run_id;
    const auto state = found ? read_json<TrainState>(found->checkpoint.manifest.at("state")) : run.state();
    CheckpointKeeper::refuse_foreign(options, run_id, state);
  }
  if (found) run.resume(*found, options);
  run.optimizer.tie();
  run.forget_best_of_another_monitor();
  run.modules.train();
  run.meet(Phase::window, 0);

  if (run.parts.logger) {
    const bool known = run.parts.source.batches || config.max_steps;
    run.parts.logger->begin(
        {.plan = {.first_step = run.state().step, .planned_steps = known ? planned_steps(config) : 0},
         .run_id = run.progress.run_id,
         .config = run.resolved_config().dump(2),
         .versions = {{"torch", TORCH_VERSION}},
         .seed = run.parts.accelerator.options().seed});
    run.log(run.state().batches > 0 || run.resumed ? "resume" : "start", {}, {});
  }
  run.meter.start(run.state().step, run.state().samples);
  if (run.only_evaluates()) return;
  if (run.reason() == EndReason::none && run.checkpoints.is_open()) run.checkpoints.remove_final();
  Names due = run.progress.pending;
  if (config.evaluate_first && run.state().batches == 0) due = run.all_sets();
  std::erase_if(due, [all = run.all_sets(), &run](const auto& set) {
    return !all.contains(set) || run.progress.evaluated.contains(set);
  });
  if (!due.empty() && !run.stop_reason) run.evaluate_and_save(due, /*checkpoint_due=*/false);
}

void TrainerCore::lap(Activity activity) { impl_->lap(activity); }

void TrainerCore::microbatch_done() {
  impl_->optimizer.arena().after_backward();
  impl_->lap(Activity::step);
}

bool TrainerCore::finished() const { return impl_->reason() != EndReason::none; }

std::optional<std::int64_t> TrainerCore::epoch_limit() const {
  return limited(impl_->config.limit_train_batches, impl_->parts.source.batches);
}

AccumulationWindow& TrainerCore::open_window() {
  auto& run = *impl_;
  const c10::AutoGradMode no_grad(false);
  run.optimizer.arena().open_window();
  for (const auto& parameter : run.idle_parameters) parameter.mutable_grad().reset();
  if (!run.buffers_before_window.empty()) at::_foreach_copy_(run.buffers_before_window, run.modules.buffers());
  if (run.checkpoints.is_open()) run.random_before_window = random_state(run.parts.accelerator.device());
  return run.window.emplace(
      run.parts.accelerator.options().gradient_accumulation_steps, run.progress.loss_unit,
      WindowPosition{.update = run.state().step + 1, .rank = run.parts.accelerator.rank()},
      run.progress.loss_scaler ? run.progress.loss_scaler->scale() : 1.0);
}

void TrainerCore::close_window(bool epoch_ended) {
  auto& run = *impl_;
  auto& progress = run.progress;
  auto& state = run.state();
  const Vote agreed = run.meet(Phase::window, run.window->samples());

  if (!run.torch_schedule) run.optimizer.set_rates(progress.rates.factor(state));
  const UpdateOutcome outcome =
      optimizer_update(*run.window, agreed.samples, run.optimizer, run.average ? &*run.average : nullptr,
                       {.max_norm = run.config.max_grad_norm,
                        .max_value = run.config.max_grad_value,
                        .keep_gradients = run.config.log_histograms_every.has_value()},
                       progress.loss_scaler ? &*progress.loss_scaler : nullptr);
  const bool updated = outcome.result == UpdateResult::applied;
  if (!updated) run.put_buffers_back();

  progress.loss_unit = run.window->loss_unit();
  progress.log_totals.merge(run.window->totals());
  progress.evaluated.clear();
  state.batches += run.window->microbatches();
  state.next_batch += run.window->microbatches();
  state.samples += agreed.samples;
  if (updated) ++state.step;
  if (epoch_ended) {
    ++state.epoch;
    state.next_batch = 0;
  }
  const double loss_scale = run.window->loss_scale();
  run.window.reset();

  if (outcome.result == UpdateResult::skipped_empty) run.log("skip", {}, "the window held no samples");
  if (outcome.result == UpdateResult::skipped_overflow) {
    run.log("skip", {{"loss_scale", loss_scale}},
            message::overflow_skipped(loss_scale, progress.loss_scaler->scale()));
  }
  run.lap(Activity::update);
  if (updated && state.step % run.config.log_every == 0) run.log_training(outcome.gradient_norm, loss_scale);
  if (updated && run.parts.logger) run.parts.logger->progress(state.step);
  if (run.torch_schedule) run.torch_schedule->after_window(state, updated, epoch_ended);

  const auto due = [&](const std::optional<Interval>& interval) {
    return interval && interval->due(state.step, updated, state.epoch, epoch_ended);
  };
  if (due(run.config.log_histograms_every)) run.log_histograms();
  Names sets = run.due_sets(updated, epoch_ended);
  switch (run.reason()) {
    case EndReason::none:
      return run.evaluate_and_save(sets, due(run.config.checkpoint_every));
    case EndReason::stop_request:
      progress.pending = std::move(sets);
      return;
    default:
      return;  // finish() evaluates and saves
  }
}

void TrainerCore::no_data() const {
  throw message::empty_source(impl_->progress.state.epoch, impl_->progress.state.next_batch);
}

TrainState TrainerCore::finish() {
  auto& run = *impl_;
  run.state().end = run.reason();
  const bool stopped = run.state().end == EndReason::stop_request;
  if (run.only_evaluates()) {
    if (!stopped) run.run_evaluation(run.all_sets());
  } else {
    Names sets = run.all_sets();
    std::erase_if(sets, [&run](const auto& set) { return run.progress.evaluated.contains(set); });
    Verdict verdict;
    if (!stopped && !sets.empty()) verdict = run.evaluate_now(sets);
    run.save({.best = verdict.improved, .final = !stopped});
  }
  if (!stopped) run.evaluate_test();
  if (!stopped && run.config.restore_best && !run.best.empty()) {
    run.last.emplace().keep(run.whole_state());
    copy_by_name(run.best.tensors(), run.whole_state());
  }
  run.state().stop_reason = run.stop_reason;
  run.log(stopped ? "stop" : "end", {}, stopped ? *run.stop_reason : to_string(run.state().end));
  if (run.parts.logger) run.parts.logger->end();
  run.checkpoints.close();
  return run.state();
}

void TrainerCore::fail() noexcept {
  auto& run = *impl_;
  if (run.window) {
    run.put_buffers_back();
    run.window.reset();
    run.save_before_failure();
  }
  run.checkpoints.close();
  if (!run.parts.logger) return;
  std::string text = "an exception that is no std::exception";
  try {
    throw;
  } catch (const std::exception& error) {
    text = error.what();
  } catch (...) {
  }
  try {
    run.log("error", {}, std::move(text));
    run.parts.logger->end();
  } catch (...) {
    // The exception under way says what went wrong; a log that cannot be written must not replace it.
  }
}

}  // namespace lockstep::detail
