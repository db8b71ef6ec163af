#include "lockstep/loop/trainer_core.hpp"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/schedulers/reduce_on_plateau_scheduler.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "config/json.hpp"
#include "files/checkpoint_writer.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/optim/parameter_groups.hpp"
#include "loop/histograms.hpp"
#include "loop/host_copy.hpp"
#include "loop/optimizer_update.hpp"
#include "loop/snapshot.hpp"
#include "loop/trained_modules.hpp"

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
using Values = std::vector<std::pair<std::string, double>>;

void append(Values& values, const std::string& prefix, const EvaluationResults& results) {
  for (const auto& [set, metrics] : results) {
    for (const auto& [name, value] : metrics) values.emplace_back(prefix + set + "/" + name, value);
  }
}

constexpr std::string_view raw_prefix = "raw/";

bool is_raw(std::string_view metric) { return metric.starts_with(raw_prefix); }

std::string set_of(std::string_view metric) {
  if (is_raw(metric)) metric.remove_prefix(raw_prefix.size());
  return std::string(metric.substr(0, metric.find('/')));
}

double value_of(const std::string& metric, const Values& values) {
  for (const auto& [name, value] : values) {
    if (name == metric) return value;
  }
  throw message::unknown_metric(metric, values);
}

}  // namespace

struct TrainerCore::Impl {
  explicit Impl(Parts given)
      : parts(std::move(given)),
        modules(parts.model, parts.objective.get(), parts.accelerator.placement()),
        optimizer(parts.optimizer, modules.parameters()) {
    if (parts.average_buffers && !parts.ema_decay) {
      throw message::invalid_settings({message::problem_average_buffers()});
    }
    if (parts.ema_decay) average.emplace(*parts.ema_decay, averaged_tensors(parts.model, parts.average_buffers));
    for (const auto& buffer : modules.buffers()) buffers_before_window.push_back(at::empty_like(buffer));
    progress.run_id = new_run_id();
    progress.loss_scaler = new_loss_scaler(parts.accelerator.options());
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
            {"ema_decay", average ? json(average->decay()) : json(nullptr)},
            {"average_buffers", parts.average_buffers},
            {"settings", settings}};
  }

  // ---- settings ----

  void forget_schedules() {
    progress.rates = {};
    torch_schedule = nullptr;
    torch_plateau = nullptr;
  }

  /// The metric that the rates follow, if they follow one.
  std::optional<std::string> scheduled_metric() const {
    if (torch_plateau) return torch_plateau_metric;
    if (const auto& schedule = progress.rates.schedule; schedule && schedule->plateau()) {
      return schedule->plateau()->metric;
    }
    return {};
  }

  /// Whether a metric can get a value at all.
  void check_watched(const std::string& who, const std::string& metric, const TrainConfig& given,
                     std::vector<std::string>& found) const {
    if (!parts.evaluation || !given.evaluate_every) {
      found.push_back(message::problem_watch_without_evaluation(who, metric));
      return;
    }
    const auto& sets = parts.evaluation->sets;
    if (std::find(sets.begin(), sets.end(), set_of(metric)) == sets.end()) {
      found.push_back(message::problem_watched_set(who, metric, sets));
    } else if (is_raw(metric) && !given.evaluate_raw) {
      found.push_back(message::problem_watched_raw(who, metric));
    }
  }

  std::vector<std::string> mistakes(const TrainConfig& given, const TrainOptions& options) const {
    auto found = problems(given);
    if (given.monitor) check_watched("the monitor", given.monitor->metric(), given, found);
    if (const auto metric = scheduled_metric()) check_watched("the schedule", *metric, given, found);
    if (!parts.evaluation) {
      for (const auto& [name, set] : {std::pair("evaluate_first", given.evaluate_first),
                                      std::pair("evaluate_raw", given.evaluate_raw),
                                      std::pair("limit_evaluation_batches", given.limit_evaluation_batches.has_value()),
                                      std::pair("epochs = 0", given.epochs == 0)}) {
        if (set) found.push_back(message::problem_without_evaluator(name));
      }
    } else if (given.evaluate_raw && !average) {
      found.push_back(message::problem_evaluate_raw());
    }
    if (options.checkpoint_dir.empty()) {
      if (given.keep_checkpoints)
        found.push_back(message::problem_without_checkpoint_dir("keep_checkpoints"));
      if (!options.metadata.empty()) found.push_back(message::problem_without_checkpoint_dir("metadata"));
      if (options.resume_from && !options.resume_from->path()) {
        found.push_back(message::problem_without_checkpoint_dir("resume_from = latest"));
      }
    }
    if (!options.settings.empty() && !json::accept(options.settings)) found.push_back(message::problem_settings_text());
    if (options.keep_schedule && !((progress.rates.schedule || writes_rates_itself()) && options.resume_from)) {
      found.push_back(message::problem_keep_schedule());
    }
    return found;
  }

  // ---- checkpoints ----

  std::optional<LatestCheckpoint> find_checkpoint(const TrainOptions& options) {
    if (!options.resume_from) return {};
    const int rank = parts.accelerator.rank();
    if (const auto& given = options.resume_from->path()) {
      const auto path = lockstep::find_checkpoint(*given, options.checkpoint_dir);
      Checkpoint checkpoint = read_checkpoint(path, rank);
      return LatestCheckpoint{.directory = std::filesystem::canonical(path), .checkpoint = std::move(checkpoint)};
    }
    return read_latest_checkpoint(options.checkpoint_dir, rank,
                                  [this](const std::string& text) { warn(text); });
  }

  /// A folder that holds another run, or a later state of this one, would mix two histories.
  void refuse_foreign_checkpoints(const TrainOptions& options, const std::optional<LatestCheckpoint>& found) {
    const bool explicit_path = options.resume_from && options.resume_from->path();
    const auto own_run = found ? found->checkpoint.manifest.at("run_id").get<std::string>() : progress.run_id;
    const auto own_state = found ? found->checkpoint.manifest.at("state") : to_json(progress.state);
    for (const auto& entry : list_checkpoints(options.checkpoint_dir)) {
      if (!entry.readable) continue;
      if (entry.run_id != own_run) {
        throw message::checkpoint_directory_not_empty(options.checkpoint_dir.string(),
                                                      entry.directory.string());
      }
      const bool newer =
          std::pair(entry.step, entry.batches) >
          std::pair(own_state.at("step").get<std::int64_t>(), own_state.at("batches").get<std::int64_t>());
      if (newer && explicit_path) {
        throw message::newer_checkpoint_exists(options.checkpoint_dir.string(), entry.directory.string());
      }
    }
  }

  void resume(const LatestCheckpoint& found, const TrainOptions& options) {
    progress = restore_checkpoint(live(), found.checkpoint, found.directory.string(), progress.rates,
                                  options.keep_schedule || writes_rates_itself(),
                                  [this](const std::string& text) { warn(text); });
    if (!parts.source.exact_resume && progress.state.next_batch > 0) warn(message::warning_source_reread());
    saved = Saved{position(), found.directory};
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

  struct Position {
    TrainState state;
    Names evaluated;
    Names pending;
    bool operator==(const Position&) const = default;
  };
  struct Saved {
    Position position;
    std::filesystem::path directory;
  };

  Position position() const {
    Position here{progress.state, progress.evaluated, progress.pending};
    here.state.end = EndReason::none;
    here.state.stop_reason = {};
    return here;
  }

  /// Whether a folder of the writer's root holds this very state. Paths to one folder can differ, by links
  /// say.
  bool is_saved() const {
    std::error_code missing;
    return saved && saved->position == position() &&
           std::filesystem::equivalent(saved->directory.parent_path(), writer->root(), missing);
  }

  /// Saves this state unless it is saved already, and gives it its names.
  void save(bool best, bool final) {
    if (!writer) return;
    if (!is_saved()) {
      ++progress.save_index;
      const TrainState full = progress.state;
      progress.state = position().state;
      const Checkpoint checkpoint = take_checkpoint(live(), progress, resolved_config(), metadata);
      progress.state = full;
      saved = Saved{position(), writer->save(checkpoint)};
      lap(Activity::checkpoint);
      log("checkpoint", {}, saved->directory.string());
    }
    writer->name("last", saved->directory);
    if (best) writer->name("best", saved->directory);
    if (final) writer->name("final", saved->directory);
    if (config.keep_checkpoints) writer->retire(*config.keep_checkpoints, progress.run_id);
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
      std::optional<WeightAverage::Swap> swap;
      if (average) swap.emplace(*average);
      append(values, "", parts.evaluation->run(request));
    }
    if (config.evaluate_raw) append(values, std::string(raw_prefix), parts.evaluation->run(request));
    lap(Activity::evaluate);
    log("evaluate", values, {});
    return values;
  }

  /// Tells the schedule and the monitor what concerns them of an evaluation of these sets.
  Verdict judge(const Names& sets, const Values& values) {
    if (const auto metric = scheduled_metric(); metric && sets.contains(set_of(*metric))) {
      const double value = value_of(*metric, values);
      if (torch_plateau) {
        torch_plateau->step(static_cast<float>(value));
      } else {
        auto& rates = progress.rates;
        rates.plateau = rates.schedule->plateau()->observe(value, rates.plateau);
      }
    }
    if (!config.monitor || !sets.contains(set_of(config.monitor->metric()))) return {};
    const Verdict verdict = config.monitor->judge(value_of(config.monitor->metric(), values), state());
    if (verdict.improved) keep_best(values);
    return verdict;
  }

  void keep_best(Values values) {
    NamedTensors tensors = modules.model_state();
    if (average && !is_raw(config.monitor->metric())) tensors = average->over(std::move(tensors));
    for (auto& tensor : modules.objective_state()) tensors.push_back(std::move(tensor));
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
    if (checkpoint_due || verdict.improved) save(verdict.improved, /*final=*/false);
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

  /// Torch's own schedules do.
  bool writes_rates_itself() const { return torch_schedule != nullptr || torch_plateau != nullptr; }

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
    for (const auto& [name, parameter] : optimizer.parameters()) {
      histograms.push_back(histogram("weights/" + name, parameter));
      if (parameter.grad().defined()) histograms.push_back(histogram("gradients/" + name, parameter.grad()));
    }
    log("histograms", {}, {}, std::move(histograms));
  }

  void log_training(double gradient_norm, double loss_scale) {
    if (!parts.logger) return progress.log_totals.clear();
    std::vector<std::pair<std::string, double>> values;
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
        parts.accelerator.collectives().vote({.phase = phase, .stop = asked.has_value(), .samples = samples});
    if (agreed.stop) stop_reason = asked.value_or("another rank was asked to stop");
    return agreed;
  }

  Parts parts;
  TrainedModules modules;
  OptimizerAdapter optimizer;
  std::optional<WeightAverage> average;
  std::vector<RegisteredState> registered;
  std::vector<at::Tensor> buffers_before_window;
  torch::optim::LRScheduler* torch_schedule = nullptr;
  Interval torch_schedule_every;
  torch::optim::ReduceLROnPlateauScheduler* torch_plateau = nullptr;
  std::string torch_plateau_metric;
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
  std::unique_ptr<CheckpointWriter> writer;
  std::optional<std::string> stop_reason;
  std::optional<Saved> saved;
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
  impl_->forget_schedules();
  auto& rates = impl_->progress.rates;
  rates.schedule = std::move(schedule);
  if (every) rates.every = *every;
}

void TrainerCore::set_scheduler(torch::optim::LRScheduler& schedule, Interval every) {
  if (every.every < 1) throw message::invalid_settings({message::problem_schedule_interval(every.every)});
  impl_->forget_schedules();
  impl_->torch_schedule = &schedule;
  impl_->torch_schedule_every = every;
  impl_->warn(message::warning_torch_schedule());
}

void TrainerCore::set_scheduler(torch::optim::ReduceLROnPlateauScheduler& schedule, std::string metric) {
  impl_->forget_schedules();
  impl_->torch_plateau = &schedule;
  impl_->torch_plateau_metric = std::move(metric);
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
  if (impl_->writes_rates_itself()) impl_->optimizer.set_rate(index, lr);
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
  if (const auto found = run.mistakes(config, options); !found.empty())
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
    run.writer = std::make_unique<CheckpointWriter>(options.checkpoint_dir);
  }
  const auto found = run.find_checkpoint(options);
  if (run.writer) run.refuse_foreign_checkpoints(options, found);
  if (found) run.resume(*found, options);
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
  if (run.reason() == EndReason::none && run.writer) run.writer->remove_name("final");
  Names due = run.progress.pending;
  if (config.evaluate_first && run.state().batches == 0) due = run.all_sets();
  std::erase_if(due, [all = run.all_sets(), &run](const auto& set) {
    return !all.contains(set) || run.progress.evaluated.contains(set);
  });
  if (!due.empty() && !run.stop_reason) run.evaluate_and_save(due, /*checkpoint_due=*/false);
}

void TrainerCore::lap(Activity activity) { impl_->lap(activity); }

bool TrainerCore::finished() const { return impl_->reason() != EndReason::none; }

std::optional<std::int64_t> TrainerCore::epoch_limit() const {
  return limited(impl_->config.limit_train_batches, impl_->parts.source.batches);
}

AccumulationWindow& TrainerCore::open_window() {
  auto& run = *impl_;
  const c10::AutoGradMode no_grad(false);
  for (const auto& parameter : run.modules.parameters()) parameter.second.mutable_grad().reset();
  if (!run.buffers_before_window.empty()) at::_foreach_copy_(run.buffers_before_window, run.modules.buffers());
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

  if (!run.writes_rates_itself()) run.optimizer.set_rates(progress.rates.factor(state));
  const UpdateOutcome outcome =
      optimizer_update(*run.window, agreed.samples, run.optimizer, run.average ? &*run.average : nullptr,
                       run.config.max_grad_norm, progress.loss_scaler ? &*progress.loss_scaler : nullptr);
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
  if (run.torch_schedule && run.torch_schedule_every.due(state.step, updated, state.epoch, epoch_ended)) {
    run.torch_schedule->step();
  }

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
    run.save(verdict.improved, /*final=*/!stopped);
  }
  if (!stopped) run.evaluate_test();
  if (!stopped && run.config.restore_best && !run.best.empty()) {
    run.last.emplace().keep(run.whole_state());
    copy_by_name(run.best.tensors(), run.whole_state());
  }
  run.state().stop_reason = run.stop_reason;
  run.log(stopped ? "stop" : "end", {}, stopped ? *run.stop_reason : to_string(run.state().end));
  if (run.parts.logger) run.parts.logger->end();
  run.writer.reset();
  return run.state();
}

void TrainerCore::fail() noexcept {
  auto& run = *impl_;
  if (run.window) run.put_buffers_back();
  run.window.reset();
  run.writer.reset();
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
