#include "loop/trainer_impl.hpp"

#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <random>
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
#include "lockstep/optim/parameter_groups.hpp"
#include "lockstep/ranks/sync_batch_norm.hpp"
#include "loop/debug_run.hpp"
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

}  // namespace

TrainerCore::Impl::Impl(Parts given)
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

void TrainerCore::Impl::register_state(const RegisteredState& object) {
  const bool taken = std::any_of(registered.begin(), registered.end(),
                                 [&](const auto& other) { return other.name == object.name; });
  if (taken || object.name.empty() || object.name.find('/') != std::string::npos) {
    throw message::invalid_settings({message::problem_registered_name(object.name, taken)});
  }
  registered.push_back(object);
}

void TrainerCore::Impl::find_idle_parameters() {
  std::set<const at::TensorImpl*> trained;
  for (const auto& parameter : optimizer.parameters()) trained.insert(parameter.second.unsafeGetTensorImpl());
  for (const auto& [name, parameter] : modules.parameters()) {
    if (!trained.contains(parameter.unsafeGetTensorImpl())) idle_parameters.push_back(parameter);
  }
}

// ---- hooks ----

RunRequests TrainerCore::Impl::settle_requests() {
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

void TrainerCore::Impl::tell_of_error() noexcept {
  for (const auto& function : hooks().error) {
    try {
      function(view, std::current_exception());
    } catch (...) {
      warn(message::warning_hook_failed(text_of(std::current_exception())));
    }
  }
}

std::function<void()> TrainerCore::Impl::caller(const std::vector<std::function<void(Run&)>>& functions) {
  if (functions.empty()) return {};
  return [this, &functions] { call(functions); };
}

void TrainerCore::Impl::tell_of_saves() {
  if (hooks().checkpoint_saved.empty() || !checkpoints.is_open()) return;
  if (const auto saved = checkpoints.take_saved()) call(hooks().checkpoint_saved, *saved);
}

// ---- state ----

Live TrainerCore::Impl::live() {
  SourceFacts source = parts.source;
  source.batches = limited(config.limit_train_batches, source.batches);
  return {modules, optimizer, average ? &*average : nullptr, parts.accelerator, source, registered,
          shared.slice_layout(), parts.own_batches};
}

void TrainerCore::Impl::begin_debugging() {
  config = debug_config(std::move(config), {.epoch = state().epoch,
                                            .batch = progress.source_batch,
                                            .batches_per_round = batches_per_round(),
                                            .ranks = parts.accelerator.world_size()});
  no_workers.emplace();
  warn(message::warning_debug());
}

// ---- talking ----

void TrainerCore::Impl::warn(const std::string& text) {
  if (!is_main()) return;
  if (parts.logger) {
    parts.logger->warn(text);
  } else {
    warn_on_console(text);
  }
}

void TrainerCore::Impl::warn_of_surprises() {
  if (config.debug || !checkpoint_dir.empty() || !config.checkpoint_every || only_evaluates()) return;
  const bool watched = parts.logger || has_hooks;
  warn(watched ? message::warning_no_checkpoints() : message::warning_nothing_kept());
}

void TrainerCore::Impl::log(const std::string& event, Values values, std::string text, std::vector<Histogram> histograms) {
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

json TrainerCore::Impl::resolved_config() const {
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

std::optional<std::string> TrainerCore::Impl::scheduled_metric() const {
  return torch_schedule ? torch_schedule->metric() : progress.rates.metric();
}

void TrainerCore::Impl::forget_schedule() {
  progress.rates = {};
  torch_schedule.reset();
  schedule_factory = {};
}

TrainerFacts TrainerCore::Impl::facts() {
  return {.evaluation_sets = parts.evaluation ? std::optional(parts.evaluation->sets) : std::nullopt,
          .averages = average.has_value(),
          .has_schedule = torch_schedule || progress.rates.schedule || schedule_factory,
          .scheduled_metric = scheduled_metric(),
          .obstacles_to_late_updates = obstacles_to_late_updates(
              optimizer, static_cast<bool>(parts.optimizer_step), torch_schedule.has_value(), hooks())};
}

// ---- the end of a run ----

EndReason TrainerCore::Impl::reason() const {
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

std::optional<std::string> TrainerCore::Impl::shared_reason(const std::optional<std::string>& asked) {
  // With a sign before it, since a reason may be empty.
  for (const auto& answer : agreement.exchange(asked ? "!" + *asked : "")) {
    if (!answer.empty()) return answer.substr(1);
  }
  return {};
}

void TrainerCore::Impl::stop_together(const std::optional<std::string>& asked) {
  auto reason = shared_reason(asked);
  if (stop_reason || !reason) return;
  stop_reason = std::move(reason);
  call(hooks().stop, *stop_reason);
}

void TrainerCore::Impl::end_together(const std::optional<std::string>& asked) {
  auto reason = shared_reason(asked);
  if (!end_reason) end_reason = std::move(reason);
}

std::string TrainerCore::Impl::end_text() const {
  if (stop_reason) return *stop_reason;
  const auto& end = progress.state.end;
  const bool explained = end == EndReason::early_stop && end_reason && !end_reason->empty();
  return to_string(end) + (explained ? ": " + *end_reason : "");
}

// ---- ranks ----

void TrainerCore::Impl::refuse_uneven_batch_norm() {
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

std::int64_t TrainerCore::Impl::batches_per_round() const {
  return lockstep::batches_per_round(parts.source, parts.own_batches ? 1 : parts.accelerator.world_size());
}

json TrainerCore::Impl::description() {
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

std::optional<LatestCheckpoint> TrainerCore::Impl::find_checkpoint(const TrainOptions& options) {
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

void TrainerCore::Impl::share_beginnings() {
  shared.broadcast_weights();
  const auto rank = parts.accelerator.rank();
  if (rank > 0) at::manual_seed(mix(parts.accelerator.options().seed, rank, 0));
}

// ---- TrainerCore ----

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
