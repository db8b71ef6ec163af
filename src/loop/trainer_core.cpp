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

#include "base/hook_messages.hpp"
#include "base/loop_messages.hpp"
#include "base/rank_messages.hpp"
#include "base/run_messages.hpp"
#include "base/saving_messages.hpp"
#include "config/debug_variable.hpp"
#include "config/json.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/base/random.hpp"
#include "lockstep/data/prefetcher.hpp"
#include "lockstep/optim/parameter_groups.hpp"
#include "lockstep/ranks/sync_batch_norm.hpp"
#include "lockstep/tensors/profiler_range.hpp"
#include "lockstep/tensors/random_state.hpp"
#include "loop/checkpoint_keeper.hpp"
#include "loop/closure_update.hpp"
#include "loop/debug_run.hpp"
#include "loop/histograms.hpp"
#include "loop/host_copy.hpp"
#include "loop/late_update.hpp"
#include "loop/metric_names.hpp"
#include "loop/optimizer_update.hpp"
#include "loop/packed_history.hpp"
#include "loop/rate_schedule.hpp"
#include "loop/save_timer.hpp"
#include "loop/settings_check.hpp"
#include "loop/shared_run.hpp"
#include "loop/snapshot.hpp"
#include "loop/trained_modules.hpp"
#include "tensors/copy_by_name.hpp"
#include "tensors/safetensors_format.hpp"

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

bool in_background(SaveFor purpose) { return purpose == SaveFor::interval || purpose == SaveFor::request; }
}  // namespace

struct TrainerCore::Impl {
  explicit Impl(Parts given)
      : parts(std::move(given)),
        modules(parts.model, parts.objective.get(), parts.accelerator.placement()),
        optimizer(parts.optimizer, modules.parameters(),
                  parts.flat_parameters ? ParameterLayout::flat : ParameterLayout::separate),
        shared(parts.accelerator, optimizer.arena(), modules),
        agreement(parts.accelerator.agreement()),
        view(progress.state, progress.history, test_results, config, parts.accelerator, parts.logger) {
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
    if (parts.optimizer_step && progress.loss_scaler) {
      const auto precision = to_string(parts.accelerator.options().precision);
      throw message::invalid_settings({message::problem_optimizer_step_scaled(precision)});
    }
    for (const auto& state : parts.hooks.states()) register_state(state);
  }

  void register_state(const RegisteredState& object) {
    const bool taken = std::any_of(registered.begin(), registered.end(),
                                   [&](const auto& other) { return other.name == object.name; });
    if (taken || object.name.empty() || object.name.find('/') != std::string::npos) {
      throw message::invalid_settings({message::problem_registered_name(object.name, taken)});
    }
    registered.push_back(object);
  }

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
  RunRequests settle_requests() {
    if (!has_hooks) return {};
    RunRequests requests = view.take_requests();
    if (agreement.alone()) {
      if (const auto stop = std::exchange(requests.stop, {})) stop_together(stop);
      if (const auto end = std::exchange(requests.end, {})) end_together(end);
      return requests;
    }
    const auto votes = agreement.meet({.phase = Phase::requests,
                                       .stop = requests.stop.has_value(),
                                       .end = requests.end.has_value(),
                                       .save = requests.save,
                                       .evaluate = requests.evaluate});
    const auto any = [&votes](bool Vote::*flag) {
      return std::any_of(votes.begin(), votes.end(), [flag](const Vote& vote) { return vote.*flag; });
    };
    if (any(&Vote::stop)) stop_together(requests.stop);
    if (any(&Vote::end)) end_together(requests.end);
    return {.evaluate = any(&Vote::evaluate), .save = any(&Vote::save)};
  }

  /// The error under way goes on, whatever hooks do about it.
  void tell_of_error() noexcept {
    for (const auto& function : hooks().error) {
      try {
        function(view, std::current_exception());
      } catch (...) {
        warn(message::warning_hook_failed(text_of(std::current_exception())));
      }
    }
  }

  /// Unset if there is nothing to call.
  std::function<void()> caller(const std::vector<std::function<void(Run&)>>& functions) {
    if (functions.empty()) return {};
    return [this, &functions] { call(functions); };
  }

  void tell_of_saves() {
    if (hooks().checkpoint_saved.empty() || !checkpoints.is_open()) return;
    if (const auto saved = checkpoints.take_saved()) call(hooks().checkpoint_saved, *saved);
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
    return {modules, optimizer, average ? &*average : nullptr, parts.accelerator, source, registered,
            shared.slice_layout(), parts.own_batches};
  }
  TrainState& state() { return progress.state; }
  bool evaluates() const { return parts.evaluation && config.evaluate_every; }
  bool only_evaluates() const { return config.epochs == 0; }
  bool is_main() const { return parts.accelerator.is_main_process(); }
  /// On all ranks alike, while the folder is open on the main one alone.
  bool saves() const { return !checkpoint_dir.empty() && !only_evaluates(); }

  /// Of what was resumed and planned without it.
  void begin_debugging() {
    config = debug_config(std::move(config), {.epoch = state().epoch,
                                              .batch = progress.source_batch,
                                              .batches_per_round = batches_per_round(),
                                              .ranks = parts.accelerator.world_size()});
    no_workers.emplace();
    warn(message::warning_debug());
  }

  // ---- talking ----

  void warn(const std::string& text) {
    if (!is_main()) return;
    if (parts.logger) {
      parts.logger->warn(text);
    } else {
      warn_on_console(text);
    }
  }

  /// What many people want to keep and this run does not, unless its settings show that it is meant.
  void warn_of_surprises() {
    if (config.debug || !checkpoint_dir.empty() || !config.checkpoint_every || only_evaluates()) return;
    const bool watched = parts.logger || has_hooks;
    warn(watched ? message::warning_no_checkpoints() : message::warning_nothing_kept());
  }

  void log(const std::string& event, Values values, std::string text, std::vector<Histogram> histograms = {}) {
    if (!parts.logger || !is_main()) return;
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

  void forget_schedule() {
    progress.rates = {};
    torch_schedule.reset();
    schedule_factory = {};
  }

  TrainerFacts facts() {
    return {.evaluation_sets = parts.evaluation ? std::optional(parts.evaluation->sets) : std::nullopt,
            .averages = average.has_value(),
            .has_schedule = torch_schedule || progress.rates.schedule || schedule_factory,
            .scheduled_metric = scheduled_metric(),
            .obstacles_to_late_updates = obstacles_to_late_updates(
                optimizer, static_cast<bool>(parts.optimizer_step), torch_schedule.has_value(), hooks())};
  }

  // ---- checkpoints ----

  void resume(const LatestCheckpoint& found, const TrainOptions& options) {
    progress = restore_checkpoint(live(), found.checkpoint, found.directory.string(), progress.rates,
                                  {.keep_schedule = options.keep_schedule || torch_schedule,
                                   .resume_world_size = options.resume_world_size},
                                  [this](const std::string& text) { warn(text); });
    if (!parts.source.exact_resume && progress.state.next_batch > 0) warn(message::warning_source_reread());
    checkpoints.saved_before(position(), found.directory);
    resumed = true;
    take_over_best(found);
  }

  /// Only the main process has read it.
  void share_history() {
    if (agreement.alone()) return;
    const auto bytes = agreement.exchange(is_main() ? packed(progress.history) : "").front();
    if (!is_main()) progress.history = unpacked(bytes);
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

  /// Saves this state unless it is saved already, and gives it its names. What is not done in the background is done when
  /// it returns, on rank 0; the other ranks know of it at the next meeting.
  void save(const CheckpointNames& names, SaveFor purpose) {
    if (!saves()) return;
    const Position here = position();
    bool needed = false;
    bool skipped = false;
    agreement.locally([&] {
      if (!is_main()) return;
      if (!in_background(purpose)) checkpoints.wait();
      if (const auto failure = checkpoints.take_failure()) earlier_save_failed(failure, purpose);
      skipped = purpose == SaveFor::interval && config.skip_busy_saves && checkpoints.busy();
      if (skipped) return note_skipped_save();
      needed = !checkpoints.is_saved(here);
    });
    if (agreement.meet({.phase = Phase::checkpoint, .save = needed}).front().save) {
      if (config.check_ranks_every) shared.compare_weights(state().step);
      write(here, names, purpose);
    } else if (!skipped) {
      agreement.locally([&] {
        if (is_main()) try_to_save(purpose, [&] { checkpoints.name(list_of(names), config.keep_checkpoints, progress.run_id); });
      });
    }
  }

  static std::vector<std::string> list_of(const CheckpointNames& names) {
    std::vector<std::string> list = {"last"};
    if (names.best) list.emplace_back("best");
    if (names.final) list.emplace_back("final");
    return list;
  }

  void write(const Position& here, const CheckpointNames& names, SaveFor purpose) {
    const ProfilerRange range("lockstep::save");
    const auto begin = save_clock();
    ++progress.save_index;
    SaveJob job{.names = list_of(names), .keep = config.keep_checkpoints, .run_id = progress.run_id};
    agreement.locally([&] {
      const TrainState full = std::exchange(progress.state, here.state);
      job.checkpoint = take_checkpoint(live(), progress, resolved_config(), metadata);
      progress.state = full;
    });
    if (!agreement.alone()) {
      // One rank writes all files, so that a checkpoint is complete or absent however many ranks there are.
      std::string mine;
      agreement.locally([&] {
        if (!is_main()) mine = safetensors_bytes({job.checkpoint.rank});
      });
      job.checkpoint.other_ranks = agreement.exchange(mine);
      job.checkpoint.other_ranks.erase(job.checkpoint.other_ranks.begin());
    }
    agreement.locally([&] {
      if (!is_main()) return;
      std::filesystem::path directory;
      try_to_save(purpose, [&] { directory = checkpoints.save(here, std::move(job), in_background(purpose)); });
      save_timer.saved(begin);
      lap(Activity::checkpoint);
      if (!directory.empty()) log("checkpoint", {}, directory.string());
    });
  }

  // ---- saves that fail ----

  template <class Work>
  void try_to_save(SaveFor purpose, Work work) {
    try {
      work();
    } catch (...) {
      const auto failure = std::current_exception();
      switch (purpose) {
        case SaveFor::interval:
        case SaveFor::request:
          return save_failed(failure);
        case SaveFor::end:
          unsaved = failure;
          return;
        case SaveFor::failure:
          return warn(message::warning_not_saved(text_of(failure)));
      }
    }
  }

  /// Goes on if the settings and the kind of failure allow it, else throws.
  void save_failed(const std::exception_ptr& failure) {
    try {
      std::rethrow_exception(failure);
    } catch (const FileError& error) {
      if (config.fail_on_save_error) throw;
      warn(message::warning_save_failed(error.what()));
    }
  }

  /// One that was made in the background, found when there is another one to make for `purpose`.
  void earlier_save_failed(const std::exception_ptr& failure, SaveFor purpose) {
    switch (purpose) {
      case SaveFor::interval:
      case SaveFor::request:
        return save_failed(failure);
      case SaveFor::end:
        return try_to_save(SaveFor::end, [&] { save_failed(failure); });
      case SaveFor::failure:
        return warn(message::warning_earlier_save_failed(text_of(failure)));
    }
  }

  void note_skipped_save() {
    save_timer.skipped();
    ++skipped_saves;
    log("skip_save", {{"skipped_saves", static_cast<double>(skipped_saves)}}, message::save_skipped(skipped_saves));
  }

  /// A window failed, and everything is as it was before it: nothing of the run need be lost.
  void save_before_failure() noexcept {
    if (!saves()) return;
    try {
      random_before_window.put_back();
      save({}, SaveFor::failure);
    } catch (const std::exception& error) {
      warn(message::warning_not_saved(error.what()));
    }
  }

  // ---- evaluation ----

  Names all_sets() const {
    return evaluates() ? Names(parts.evaluation->sets.begin(), parts.evaluation->sets.end()) : Names();
  }

  /// The sets whose interval is over.
  Names due_sets(const TrainState& at, bool updated, bool epoch_ended) const {
    Names due;
    if (!evaluates()) return due;
    for (const auto& set : parts.evaluation->sets) {
      const auto& own = parts.evaluation->options.every;
      const auto found = own.find(set);
      const Interval& interval = found == own.end() ? *config.evaluate_every : found->second;
      if (interval.due(at.step, updated, at.epoch, epoch_ended)) due.insert(set);
    }
    return due;
  }

  EvaluationResults evaluate(const Evaluation& evaluation, EvaluationRequest request, Weights which) {
    const auto weights = use_weights(which);
    call(hooks().evaluation_begin, which);
    if (!hooks().evaluation_batch_end.empty()) {
      request.after_batch = [this](const std::string& set, const StepOutput& output) {
        for (const auto& function : hooks().evaluation_batch_end) function(view, set, output);
      };
    }
    EvaluationResults results = evaluation.run(request);
    call(hooks().evaluation_end, which, results);
    return results;
  }

  /// Evaluates and logs these sets, on the average if there is one.
  Values run_evaluation(const Names& sets) {
    const EvaluationRequest request{.sets = {sets.begin(), sets.end()},
                                    .limit_batches = config.limit_evaluation_batches,
                                    .objective = modules.objective()};
    Values values;
    append(values, "", evaluate(*parts.evaluation, request, average ? Weights::ema : Weights::raw));
    if (config.evaluate_raw) append(values, raw_prefix, evaluate(*parts.evaluation, request, Weights::raw));
    lap(Activity::evaluate);
    if (at_epoch_end()) progress.history.extend(values);
    agreement.locally([&] { log("evaluate", values, {}); });
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
    agreement.locally([&] { log("best", std::move(values), {}); });
  }

  Verdict evaluate_now(const Names& sets) {
    const Values values = run_evaluation(sets);
    progress.evaluated.insert(sets.begin(), sets.end());
    for (const auto& set : sets) progress.pending.erase(set);
    return judge(sets, values);
  }

  /// `due`: what a checkpoint is due for, if one is.
  void evaluate_and_save(const Names& sets, const std::optional<SaveFor>& due) {
    Verdict verdict;
    RunRequests requests;
    if (!sets.empty()) {
      verdict = evaluate_now(sets);
      requests = settle_requests();
    }
    if (verdict.improved || requests.save) {
      save({.best = verdict.improved}, SaveFor::request);
    } else if (due) {
      save({}, *due);
    }
  }

  /// Of a run that is over.
  void evaluate_test() {
    if (!parts.test) return;
    const auto& test = *parts.test;
    test_results = evaluate(test,
                            {.sets = test.sets,
                             .limit_batches = config.debug ? config.limit_evaluation_batches : std::nullopt,
                             .objective = modules.objective()},
                            !best.empty() ? Weights::best : average ? Weights::ema : Weights::raw);
    Values values;
    append(values, "", *test_results);
    agreement.locally([&] { log("test", std::move(values), {}); });
  }

  /// With rank 0's buffers on every rank.
  std::shared_ptr<void> use_weights(Weights which) {
    std::shared_ptr<void> swap;
    switch (which) {
      case Weights::raw:
        break;
      case Weights::ema:
        if (!average) throw message::no_averaged_weights();
        optimizer.tie();
        swap = std::make_shared<WeightAverage::Swap>(*average);
        break;
      case Weights::best:
        if (best.empty()) throw message::no_best_weights();
        swap = std::make_shared<ValueSwap>(best.tensors(), whole_state());
        break;
    }
    if (shared.alone()) return swap;
    // Destroyed in the reverse order.
    return std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<void>>>(std::move(swap),
                                                                                     shared.buffers_of_main());
  }

  /// Everything that the best weights cover.
  NamedTensors whole_state() const {
    NamedTensors state = modules.model_state();
    for (auto& tensor : modules.objective_state()) state.push_back(std::move(tensor));
    return state;
  }

  // ---- the window ----

  WeightAverage* moved() { return average ? &*average : nullptr; }
  LossScaler* scaler() { return progress.loss_scaler ? &*progress.loss_scaler : nullptr; }

  UpdateSettings update_settings() {
    return {.max_norm = config.max_grad_norm,
            .max_value = config.max_grad_value,
            .keep_gradients = config.log_histograms_every.has_value(),
            .before_clip = caller(hooks().before_clip),
            .before_update = caller(hooks().before_update)};
  }

  /// After the window was closed.
  UpdateOutcome update(std::int64_t samples_on_all_ranks) {
    const ProfilerRange range("lockstep::update");
    if (!parts.optimizer_step) {
      return optimizer_update(*window, samples_on_all_ranks, optimizer, moved(), update_settings(), scaler());
    }
    return closure_update(*window, samples_on_all_ranks,
                          {.optimizer = parts.optimizer,
                           .adapter = optimizer,
                           .shared = shared,
                           .agreement = agreement,
                           .optimizer_step = parts.optimizer_step,
                           .step_again = parts.step_again,
                           .backward = parts.backward,
                           .before_sync = caller(hooks().before_sync)},
                          moved(), update_settings());
  }

  /// Whether nothing needs to know at the end of this window whether its gradients are finite.
  bool may_be_late(const AgreedWindow& agreed, const RunRequests& requests) {
    if (!config.late_finite_check) return false;
    TrainState next = state();
    ++next.step;
    const auto due = [&next](const std::optional<Interval>& interval) {
      return interval && interval->due(next.step, true, next.epoch, false);
    };
    const bool ends =
        !agreed.more_data || stop_reason || end_reason || (config.max_steps && next.step >= *config.max_steps);
    const bool shown = next.step % config.log_every == 0 || due(config.log_histograms_every) ||
                       due(config.check_ranks_every) || !due_sets(next, true, false).empty() || requests.evaluate;
    const bool saved = agreed.saves > 0 || requests.save || due(config.checkpoint_every);
    // What the first update begins stays begun.
    const bool first = progress.loss_unit == 0 || (average && !average->started());
    return !ends && !shown && !saved && !first && agreed.samples > 0 && !optimizer.arena().gradients().empty();
  }

  void launch_late(const AgreedWindow& agreed) {
    const ProfilerRange range("lockstep::update");
    auto norm = launch_update(*window, agreed.samples, optimizer, moved(), update_settings(),
                              {.now = modules.buffers(), .before = buffers_before_window});
    late.emplace(LateUpdate{.window = std::move(*window),
                            .agreed = agreed,
                            .random_before = std::move(random_before_window),
                            .gradient_norm = std::move(norm)});
    window.reset();
  }

  /// Counts the update before, where that waits for the device. Errors: NonFiniteError, on all ranks.
  void settle_late() {
    if (!late) return;
    auto settled = *std::exchange(late, std::nullopt);
    UpdateOutcome outcome;
    try {
      outcome = settle(settled, optimizer, moved(), scaler());
    } catch (const NonFiniteError&) {
      random_before_window = std::move(settled.random_before);
      agreement.together([] { throw; });
    }
    count(settled.window, settled.agreed, outcome);
    log_skip(outcome, settled.window.loss_scale());
    agreement.locally([&] {
      if (parts.logger) parts.logger->progress(state().step);
    });
  }

  /// The exception under way may be of the window after it.
  void settle_late_at_failure() noexcept {
    try {
      settle_late();
    } catch (...) {
      warn(text_of(std::current_exception()));
    }
  }

  /// A window that was updated from, or skipped.
  void count(const AccumulationWindow& counted, const AgreedWindow& agreed, const UpdateOutcome& outcome) {
    auto& s = state();
    const bool updated = outcome.result == UpdateResult::applied;
    progress.loss_unit = counted.loss_unit();
    progress.totals.add(counted.totals(), updated ? std::optional(outcome.gradient_norm) : std::nullopt);
    progress.evaluated.clear();
    s.batches += agreed.microbatches;
    s.next_batch += agreed.microbatches;
    progress.source_batch += parts.own_batches ? counted.microbatches() : agreed.microbatches * batches_per_round();
    s.samples += agreed.samples;
    if (updated) ++s.step;
    if (!agreed.more_data) {
      ++s.epoch;
      s.next_batch = 0;
      progress.source_batch = 0;
    }
  }

  void log_skip(const UpdateOutcome& outcome, double loss_scale) {
    agreement.locally([&] {
      if (outcome.result == UpdateResult::skipped_empty) log("skip", {}, "the window held no samples");
      if (outcome.result == UpdateResult::skipped_overflow) {
        log("skip", {{"loss_scale", loss_scale}},
            message::overflow_skipped(loss_scale, progress.loss_scaler->scale()));
      }
    });
  }

  void put_buffers_back() {
    const c10::AutoGradMode no_grad(false);
    if (!modules.buffers().empty()) at::_foreach_copy_(modules.buffers(), buffers_before_window);
  }

  void lap(Activity activity) {
    if (parts.logger) meter.lap(activity);
  }

  /// Of what the optimizer trains.
  void log_histograms() {
    if (!parts.logger || !is_main()) return;
    std::vector<Histogram> histograms;
    for (const auto& member : optimizer.arena().members()) {
      const auto& [name, parameter] = std::tie(member.name, member.parameter);
      histograms.push_back(histogram("weights/" + name, parameter));
      if (member.touched) histograms.push_back(histogram("gradients/" + name, parameter.grad()));
    }
    log("histograms", {}, {}, std::move(histograms));
  }

  void log_training(double gradient_norm, double loss_scale) {
    MetricTotals own = progress.totals.take_line();
    if (!some_rank_logs) return;
    MetricTotals totals = over_ranks(std::move(own), agreement);
    if (!parts.logger || !is_main()) return;
    Values values;
    for (auto& [name, mean] : totals.means()) values.emplace_back("train/" + name, mean);
    append_rates(values);
    values.emplace_back("grad_norm", gradient_norm);
    if (progress.loss_scaler) values.emplace_back("loss_scale", loss_scale);
    for (auto& value : meter.take(progress.state.step, progress.state.samples)) values.push_back(std::move(value));
    agreement.locally([&] { log("train", std::move(values), {}); });
  }

  /// Whether the latest record is of this very moment.
  bool at_epoch_end() const {
    const auto& s = progress.state;
    return s.next_batch == 0 && !progress.history.empty() && progress.history.back().epoch == s.epoch;
  }

  void append_rates(Values& values) const {
    const auto& groups = optimizer.group_names();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      values.emplace_back(groups.size() == 1 ? "lr" : "lr/" + groups[i], optimizer.rate(i));
    }
  }

  /// Records and logs what the epoch that has just ended came to.
  void record_epoch() {
    MetricTotals totals = over_ranks(progress.totals.take_epoch(is_main()), agreement);
    Values values;
    for (auto& [name, mean] : totals.means()) {
      values.emplace_back("epoch/" + (name == TrainingTotals::norm_entry ? "grad_norm" : name), mean);
    }
    EpochRecord record{.epoch = state().epoch, .step = state().step, .values = values};
    append_rates(record.values);
    progress.history.add(std::move(record));
    agreement.locally([&] { log("epoch", std::move(values), {}); });
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
    return end_reason ? EndReason::early_stop : EndReason::none;
  }

  std::optional<std::string> asked_to_stop() const { return stop ? stop->reason() : std::nullopt; }

  /// Of what the ranks were asked, the first reason; the same on all. Every rank.
  std::optional<std::string> shared_reason(const std::optional<std::string>& asked) {
    for (auto& reason : agreement.exchange(asked.value_or(""))) {
      if (!reason.empty()) return std::move(reason);
    }
    return {};
  }

  /// Some rank was asked to stop: all give the same reason.
  void stop_together(const std::optional<std::string>& asked) {
    auto reason = shared_reason(asked);
    if (stop_reason || !reason) return;
    stop_reason = std::move(reason);
    call(hooks().stop, *stop_reason);
  }

  /// A hook on some rank ended the run: all give the same reason.
  void end_together(const std::optional<std::string>& asked) {
    auto reason = shared_reason(asked);
    if (!end_reason) end_reason = std::move(reason);
  }

  /// What the log says about the end of a call.
  std::string end_text() const {
    if (stop_reason) return *stop_reason;
    const auto& end = progress.state.end;
    return to_string(end) + (end == EndReason::early_stop && end_reason ? ": " + *end_reason : "");
  }

  // ---- ranks ----

  /// A rank without a batch does not call its Step, and the others would wait for it there.
  void refuse_uneven_batch_norm() {
    if (agreement.alone() || parts.own_batches || only_evaluates()) return;
    const int ranks = parts.accelerator.world_size();
    const auto batches = limited(config.limit_train_batches, parts.source.batches);
    const bool even = parts.source.split_batches.value_or(false) ? parts.source.drop_last.value_or(false)
                                                                 : batches && *batches % ranks == 0;
    if (even) return;
    if (has_sync_batch_norm(parts.model) || (parts.objective && has_sync_batch_norm(*parts.objective))) {
      throw message::sync_batch_norm_uneven(batches.value_or(-1), ranks);
    }
  }

  /// Batches of the source that all ranks together take for one microbatch of each.
  std::int64_t batches_per_round() const {
    return lockstep::batches_per_round(parts.source, parts.own_batches ? 1 : parts.accelerator.world_size());
  }

  /// What all ranks must have in common.
  json description() {
    json own = fingerprint(live());
    json config = resolved_config();
    // The program's own settings may be of a rank.
    config.erase("settings");
    // These differ between machines that train together well.
    for (const auto* name : {"build", "cpu_capability", "threads"}) own.erase(name);
    if (parts.own_batches) own.erase("data");
    return {{"run", std::move(own)},
            {"config", std::move(config)},
            {"tensors", shared.describe_tensors()},
            {"saves", saves()},
            {"hooks", parts.hooks.layout()},
            {"optimizer_step", static_cast<bool>(parts.optimizer_step)},
            {"resumes", resumes}};
  }

  /// Reads the folder that rank 0 found, so that all ranks go on from the same state even if a folder looks different to
  /// them.
  std::optional<LatestCheckpoint> find_checkpoint(const TrainOptions& options) {
    std::optional<LatestCheckpoint> found;
    agreement.locally([&] {
      if (!is_main()) return;
      found = CheckpointKeeper::find(options, 0, [this](const std::string& text) { warn(text); });
    });
    if (agreement.alone() || !options.resume_from) return found;
    (void)agreement.meet({.phase = Phase::start});
    const auto directory = agreement.exchange(found ? found->directory.string() : "").front();
    agreement.locally([&] {
      if (is_main() || directory.empty()) return;
      found = LatestCheckpoint{directory, read_checkpoint(directory, parts.accelerator.rank())};
    });
    (void)agreement.meet({.phase = Phase::start});
    return found;
  }

  /// The weights that rank 0 starts from, and random numbers of this rank's own from here on.
  void share_beginnings() {
    shared.broadcast_weights();
    const auto rank = parts.accelerator.rank();
    if (rank > 0) at::manual_seed(mix(parts.accelerator.options().seed, rank, 0));
  }

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
  json metadata;
  json settings;
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

TrainerCore::TrainerCore(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}
TrainerCore::~TrainerCore() = default;

const TrainState& TrainerCore::state() const { return impl_->progress.state; }
const History& TrainerCore::history() const { return impl_->progress.history; }

std::int64_t TrainerCore::updates_per_epoch(const std::optional<BatchLimit>& limit) const {
  const auto batches = limited(limit, impl_->parts.source.batches);
  if (!batches) throw message::unknown_length();
  const auto size = impl_->parts.accelerator.options().gradient_accumulation_steps * impl_->batches_per_round();
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
  if (every && every->timed()) found.push_back(message::problem_timed_interval("the schedule's interval", to_string(*every)));
  if (!found.empty()) throw message::invalid_settings(found);
  impl_->forget_schedule();
  auto& rates = impl_->progress.rates = {.schedule = std::move(schedule)};
  if (every) rates.every = *every;
}

void TrainerCore::set_scheduler(ScheduleFactory factory, std::optional<Interval> every) {
  if (!factory) throw message::invalid_settings({message::problem_schedule_factory()});
  impl_->forget_schedule();
  impl_->schedule_factory = std::move(factory);
  impl_->schedule_factory_every = every;
}

void TrainerCore::set_scheduler(torch::optim::LRScheduler& schedule, Interval every) {
  if (every.every < 1) throw message::invalid_settings({message::problem_schedule_interval(every.every)});
  if (every.timed()) {
    throw message::invalid_settings({message::problem_timed_interval("the schedule's interval", to_string(every))});
  }
  impl_->forget_schedule();
  impl_->torch_schedule.emplace(schedule, every);
  impl_->warn(message::warning_torch_schedule());
}

void TrainerCore::set_scheduler(torch::optim::ReduceLROnPlateauScheduler& schedule, std::string metric) {
  impl_->forget_schedule();
  impl_->torch_schedule.emplace(schedule, std::move(metric));
  impl_->warn(message::warning_torch_schedule());
}

PlannedRun TrainerCore::planned_run(const TrainConfig& config) const {
  const auto& run = *impl_;
  PlannedRun plan{.epochs = config.epochs,
                  .batches = limited(config.limit_train_batches, run.parts.source.batches)};
  if (run.parts.evaluation) {
    for (const auto& [set, batches] : run.parts.evaluation->set_batches()) {
      plan.evaluation_batches.emplace(set, *limited(config.limit_evaluation_batches, batches));
    }
  }
  const auto& groups = run.optimizer.group_names();
  for (std::size_t i = 0; i < groups.size(); ++i) plan.base_lr.emplace(groups[i], run.optimizer.base_lr(i));
  if (plan.batches) plan.known_updates_per_epoch = updates_per_epoch(config.limit_train_batches);
  if (plan.batches || config.max_steps) plan.known_planned_steps = planned_steps(config);
  return plan;
}

void TrainerCore::make_schedule(const TrainConfig& config) {
  const auto factory = std::exchange(impl_->schedule_factory, {});
  set_scheduler(factory(planned_run(config)), impl_->schedule_factory_every);
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
  impl_->register_state(object);
}

void TrainerCore::begin(const TrainConfig& config, const TrainOptions& options) {
  auto& run = *impl_;
  auto& agreement = run.agreement;
  agreement.begin();
  agreement.locally([&] {
    const auto check = [&] {
      if (const auto found = problems(config, options, run.facts()); !found.empty())
        throw message::invalid_settings(found);
    };
    check();
    if (!run.schedule_factory) return;
    make_schedule(config);
    check();
  });
  run.config = config;
  agreement.locally([&] { run.config.debug = config.debug || debug_variable(); });
  agreement.locally([&] { run.refuse_uneven_batch_norm(); });
  run.metadata = options.metadata;
  run.stop = options.stop;
  run.save_now = options.save_now;
  run.save_timer = SaveTimer(config.checkpoint_every);
  run.skipped_saves = 0;
  run.unsaved = nullptr;
  run.stop_reason = {};
  run.end_reason = {};
  run.checkpoint_dir = run.config.debug ? std::filesystem::path() : options.checkpoint_dir;
  run.resumes = options.resume_from.has_value();
  run.resumed = false;
  run.test_results = {};
  run.state().end = EndReason::none;
  run.state().stop_reason = {};
  agreement.locally([&] {
    run.settings = options.settings.empty() ? json(nullptr) : json::parse(options.settings);
    if (run.last) {
      copy_by_name(run.last->tensors(), run.whole_state());
      run.last = {};
    }
    if (run.saves() && run.is_main()) run.checkpoints.open(options.checkpoint_dir, config.background_saves);
  });
  if (!agreement.alone()) {
    (void)agreement.meet({.phase = Phase::start});
    run.shared.compare(run.description());
  }
  run.some_rank_logs = false;
  for (const auto& logs : agreement.exchange(run.parts.logger ? "logs" : "")) run.some_rank_logs |= !logs.empty();

  const auto found = run.find_checkpoint(options);
  agreement.locally([&] {
    if (run.checkpoints.is_open()) {
      const auto run_id =
          found ? found->checkpoint.manifest.at("run_id").get<std::string>() : run.progress.run_id;
      const auto state = found ? read_json<TrainState>(found->checkpoint.manifest.at("state")) : run.state();
      CheckpointKeeper::refuse_foreign(options, run_id, state);
    }
    if (found) run.resume(*found, options);
    run.optimizer.tie();
    run.forget_best_of_another_monitor();
  });
  const auto asked = run.asked_to_stop();
  const auto votes = agreement.meet({.phase = Phase::start, .stop = asked.has_value()});
  if (std::any_of(votes.begin(), votes.end(), [](const Vote& vote) { return vote.stop; })) run.stop_together(asked);
  if (!std::exchange(run.began, true)) {
    if (const auto& warning = run.parts.accelerator.launch().warning; !warning.empty()) run.warn(warning);
    run.warn_of_surprises();
    if (!found) run.share_beginnings();
  }
  if (found) run.share_history();
  if (options.reset_history) run.progress.history = {};
  run.modules.train();
  if (run.config.debug) run.begin_debugging();
  if (run.config.overfit_one_batch) {
    run.warn(message::warning_overfit(run.parts.accelerator.options().gradient_accumulation_steps));
  }

  agreement.locally([&] {
    if (!run.parts.logger) return;
    const bool known = run.parts.source.batches || config.max_steps;
    run.parts.logger->begin(
        {.plan = {.first_step = run.state().step, .planned_steps = known ? planned_steps(config) : 0},
         .run_id = run.progress.run_id,
         .config = run.resolved_config().dump(2),
         .versions = {{"torch", TORCH_VERSION}},
         .seed = run.parts.accelerator.options().seed,
         .console_only = run.config.debug});
    run.log(run.state().batches > 0 || run.resumed ? "resume" : "start", {}, {});
  });
  run.meter.start(run.state().step, run.state().samples);
  (void)run.view.take_requests();  // left by a call before
  run.call(run.hooks().run_begin);
  const RunRequests requests = run.settle_requests();
  if (run.only_evaluates()) return;
  agreement.locally([&] {
    if (run.reason() == EndReason::none && run.checkpoints.is_open()) run.checkpoints.remove_final();
  });
  Names due = run.progress.pending;
  if (config.evaluate_first && run.state().batches == 0) due = run.all_sets();
  std::erase_if(due, [all = run.all_sets(), &run](const auto& set) {
    return !all.contains(set) || run.progress.evaluated.contains(set);
  });
  if (requests.evaluate) due = run.all_sets();
  if (run.stop_reason) return;
  if (!due.empty() || requests.save) {
    run.evaluate_and_save(due, requests.save ? std::optional(SaveFor::request) : std::nullopt);
  }
}

void TrainerCore::lap(Activity activity) { impl_->lap(activity); }

void TrainerCore::add(const StepOutput& output, bool last) {
  auto& run = *impl_;
  run.call(run.hooks().after_loss, output);
  // Sums under way could not be looked at.
  run.shared.add(*run.window, output, last && run.hooks().before_sync.empty(), run.parts.backward);
  run.lap(Activity::step);
}

bool TrainerCore::finished() const { return impl_->reason() != EndReason::none; }

std::optional<std::int64_t> TrainerCore::epoch_limit() const {
  return limited(impl_->config.limit_train_batches, impl_->parts.source.batches);
}

Shard TrainerCore::shard() const {
  const auto& run = *impl_;
  if (run.parts.own_batches) return {};
  return {.rank = run.parts.accelerator.rank(), .ranks = run.parts.accelerator.world_size()};
}

std::int64_t TrainerCore::first_batch() const { return impl_->progress.source_batch; }

bool TrainerCore::overfits() const { return impl_->config.overfit_one_batch; }

bool TrainerCore::keeps_batches() const { return static_cast<bool>(impl_->parts.optimizer_step); }

AccumulationWindow& TrainerCore::open_window() {
  auto& run = *impl_;
  auto& agreement = run.agreement;
  const c10::AutoGradMode no_grad(false);
  run.optimizer.arena().open_window();
  for (const auto& parameter : run.idle_parameters) parameter.mutable_grad().reset();
  if (!run.buffers_before_window.empty()) at::_foreach_copy_(run.buffers_before_window, run.modules.buffers());
  if (run.saves()) run.random_before_window = GeneratorCopies(run.parts.accelerator.device());
  auto& window = run.window.emplace(
      run.parts.accelerator.options().gradient_accumulation_steps, run.progress.loss_unit,
      WindowPosition{.update = run.state().step + (run.late ? 2 : 1), .rank = run.parts.accelerator.rank()},
      !run.progress.loss_scaler ? 1.0
      : run.late                ? scale_if_finite(*run.progress.loss_scaler)
                                : run.progress.loss_scaler->scale());
  if (run.checkpoints.is_open()) {
    agreement.locally([&] {
      if (const auto failure = run.checkpoints.take_failure()) run.save_failed(failure);
    });
    run.tell_of_saves();
  }
  if (run.state().next_batch == 0) run.call(run.hooks().epoch_begin);
  run.call(run.hooks().window_begin);
  run.shared.open_window(window);
  return window;
}

bool TrainerCore::close_window(bool more_data) {
  auto& run = *impl_;
  auto& agreement = run.agreement;
  auto& progress = run.progress;
  auto& state = run.state();
  run.call(run.hooks().before_sync);
  const auto asked = run.asked_to_stop();
  const bool save_asked = run.save_now && run.save_now->take();
  const bool save_timed = run.is_main() && run.saves() && run.save_timer.due();
  const AgreedWindow agreed =
      run.shared.close_window(*run.window, asked.has_value(), save_asked || save_timed, more_data);
  run.settle_late();
  if (agreed.stop) run.stop_together(asked);
  if (agreed.microbatches == 0) agreement.together([&] { no_data(); });
  const bool epoch_ended = !agreed.more_data;

  if (!run.torch_schedule) run.optimizer.set_rates(progress.rates.factor(state));
  RunRequests requests;
  if (run.config.late_finite_check) requests = run.settle_requests();
  if (run.may_be_late(agreed, requests)) {
    run.launch_late(agreed);
    run.lap(Activity::update);
    return true;
  }
  UpdateOutcome outcome;
  try {
    outcome = run.update(agreed.samples);
  } catch (const NonFiniteError&) {
    // The gradients are the same on all ranks.
    agreement.together([] { throw; });
  } catch (...) {
    if (agreement.alone() || agreement.settled()) throw;
    agreement.fail(std::current_exception());
  }
  const bool updated = outcome.result == UpdateResult::applied;
  if (!updated) run.put_buffers_back();

  const double loss_scale = run.window->loss_scale();
  run.count(*run.window, agreed, outcome);
  run.window.reset();

  run.log_skip(outcome, loss_scale);
  run.lap(Activity::update);
  if (updated && state.step % run.config.log_every == 0) run.log_training(outcome.gradient_norm, loss_scale);
  if (epoch_ended) run.record_epoch();
  agreement.locally([&] {
    if (updated && run.parts.logger) run.parts.logger->progress(state.step);
    if (run.torch_schedule) run.torch_schedule->after_window(state, updated, epoch_ended);
  });

  const auto due = [&](const std::optional<Interval>& interval) {
    return interval && interval->due(state.step, updated, state.epoch, epoch_ended);
  };
  if (due(run.config.check_ranks_every)) run.shared.compare_weights(state.step);
  if (due(run.config.log_histograms_every)) agreement.locally([&] { run.log_histograms(); });
  run.call(run.hooks().after_update, outcome);
  if (epoch_ended) run.call(run.hooks().epoch_end);
  const RunRequests later = run.settle_requests();
  requests.evaluate |= later.evaluate;
  requests.save |= later.save;
  Names sets = requests.evaluate ? run.all_sets() : run.due_sets(state, updated, epoch_ended);
  switch (run.reason()) {
    case EndReason::none: {
      std::optional<SaveFor> save;
      if (agreed.saves > 0 || due(run.config.checkpoint_every)) save = SaveFor::interval;
      if (requests.save || agreed.saves > (save_timed && !save_asked ? 1 : 0)) save = SaveFor::request;
      run.evaluate_and_save(sets, save);
      break;
    }
    case EndReason::stop_request:
      progress.pending = std::move(sets);
      break;
    default:
      break;  // finish() evaluates and saves
  }
  return !epoch_ended;
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
    run.save({.best = verdict.improved, .final = !stopped}, SaveFor::end);
  }
  if (!stopped) run.evaluate_test();
  if (!stopped && run.config.restore_best && !run.best.empty()) {
    run.last.emplace().keep(run.whole_state());
    copy_by_name(run.best.tensors(), run.whole_state());
  }
  run.state().stop_reason = run.stop_reason;
  run.tell_of_saves();
  run.call(run.hooks().run_end);
  run.agreement.locally([&] {
    run.log(stopped ? "stop" : "end", {}, run.end_text());
    if (run.unsaved) std::rethrow_exception(std::exchange(run.unsaved, nullptr));
    if (run.parts.logger) run.parts.logger->end();
  });
  if (!run.agreement.alone()) (void)run.agreement.meet({.phase = Phase::run_end});
  run.no_workers.reset();
  run.checkpoints.close();
  return run.state();
}

void TrainerCore::fail() noexcept {
  auto& run = *impl_;
  run.no_workers.reset();
  // Whatever is thrown alone is thrown in a window: everywhere else it waits for a vote.
  if (!run.agreement.alone() && !run.agreement.settled()) run.shared.fail_window(std::current_exception(), run.progress.loss_unit);
  run.settle_late_at_failure();
  if (run.window) {
    run.put_buffers_back();
    run.window.reset();
    run.shared.drop_sums();
    if (run.parts.accelerator.collectives().usable()) run.save_before_failure();
  }
  run.checkpoints.wait();
  if (const auto failure = run.checkpoints.take_failure()) run.earlier_save_failed(failure, SaveFor::failure);
  run.checkpoints.close();
  run.tell_of_error();
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
