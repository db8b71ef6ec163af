#include "lockstep/loop/trainer_core.hpp"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "config/json.hpp"
#include "files/checkpoint_writer.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/optim/parameter_groups.hpp"
#include "lockstep/tensors/module_state.hpp"
#include "loop/optimizer_update.hpp"
#include "loop/snapshot.hpp"

namespace lockstep::detail {
namespace {

using nlohmann::json;

std::string new_run_id() {
  std::random_device random;
  std::string id;
  while (id.size() < 16) id += "0123456789abcdef"[random() % 16];
  return id;
}

std::vector<at::Tensor> defined_buffers(const torch::nn::Module& module) {
  std::vector<at::Tensor> result;
  for (const auto& buffer : module.buffers()) {
    if (buffer.defined()) result.push_back(buffer);
  }
  return result;
}

NamedTensors placed_parameters(torch::nn::Module& module, const Placement& placement) {
  place_module(module, placement.device, *placement.floating);
  NamedTensors parameters;
  for (const auto& parameter : module.named_parameters())
    parameters.emplace_back(parameter.key(), parameter.value());
  return parameters;
}

}  // namespace

struct TrainerCore::Impl {
  explicit Impl(Parts given)
      : parts(std::move(given)),
        parameters(placed_parameters(parts.module, parts.accelerator.placement())),
        optimizer(parts.optimizer, parameters),
        buffers(defined_buffers(parts.module)) {
    if (parts.ema_decay) average.emplace(*parts.ema_decay, trainable_parameters(parts.module));
    for (const auto& buffer : buffers) buffers_before_window.push_back(at::empty_like(buffer));
    progress.run_id = new_run_id();
  }

  Live live() {
    return {parts.module, optimizer, average ? &*average : nullptr, parts.accelerator, parts.source};
  }
  TrainState& state() { return progress.state; }
  bool evaluates() const { return parts.evaluation_sets && config.evaluate_every; }

  // ---- talking ----

  void warn(const std::string& text) {
    if (!parts.accelerator.is_main_process()) return;
    if (parts.logger) {
      parts.logger->warn(text);
    } else {
      warn_on_console(text);
    }
  }

  void log(const std::string& event, std::vector<std::pair<std::string, double>> values, std::string text) {
    if (!parts.logger) return;
    const auto& s = progress.state;
    parts.logger->log({.event = event,
                       .step = s.step,
                       .epoch = s.epoch,
                       .samples = s.samples,
                       .values = std::move(values),
                       .text = std::move(text)});
  }

  json resolved_config() const {
    auto groups = json::array();
    for (std::size_t i = 0; i < optimizer.group_names().size(); ++i) {
      groups.push_back({{"name", optimizer.group_names()[i]}, {"base_lr", optimizer.base_lr(i)}});
    }
    return {{"train", to_json(config)},
            {"optimizer", {{"kind", optimizer.kind()}, {"groups", std::move(groups)}}},
            {"schedule", progress.schedule ? to_json(*progress.schedule) : json(nullptr)},
            {"ema_decay", average ? json(average->decay()) : json(nullptr)}};
  }

  // ---- settings ----

  std::vector<std::string> mistakes(const TrainConfig& given, const TrainOptions& options) const {
    auto found = problems(given);
    if (progress.schedule) {
      for (auto& problem : problems(*progress.schedule)) found.push_back(std::move(problem));
    }
    if (given.monitor) {
      const auto& metric = given.monitor->metric();
      if (!parts.evaluation_sets || !given.evaluate_every) {
        found.push_back(message::problem_monitor_without_evaluation(metric));
      } else {
        const auto& sets = *parts.evaluation_sets;
        if (std::find(sets.begin(), sets.end(), metric.substr(0, metric.find('/'))) == sets.end()) {
          found.push_back(message::problem_monitor_set(metric, sets));
        }
      }
    }
    if (options.checkpoint_dir.empty()) {
      if (given.keep_checkpoints)
        found.push_back(message::problem_without_checkpoint_dir("keep_checkpoints"));
      if (!options.metadata.empty()) found.push_back(message::problem_without_checkpoint_dir("metadata"));
      if (options.resume_from && !options.resume_from->path()) {
        found.push_back(message::problem_without_checkpoint_dir("resume_from = latest"));
      }
    }
    if (options.keep_schedule && !(progress.schedule && options.resume_from)) {
      found.push_back(message::problem_keep_schedule());
    }
    return found;
  }

  // ---- checkpoints ----

  std::optional<LatestCheckpoint> find_checkpoint(const TrainOptions& options) {
    if (!options.resume_from) return {};
    const int rank = parts.accelerator.rank();
    if (const auto& path = options.resume_from->path()) {
      Checkpoint checkpoint = read_checkpoint(*path, rank);
      return LatestCheckpoint{.directory = std::filesystem::canonical(*path),
                              .checkpoint = std::move(checkpoint)};
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
    const auto given_schedule = progress.schedule;
    progress = restore_checkpoint(live(), found.checkpoint, found.directory.string(),
                                  [this](const std::string& text) { warn(text); });
    if (options.keep_schedule) {
      progress.schedule = given_schedule;
    } else if (given_schedule && progress.schedule != given_schedule) {
      warn(message::warning_schedule_restored(progress.schedule ? to_json(*progress.schedule).dump() : "none",
                                              to_json(*given_schedule).dump()));
    }
    if (!parts.source.exact_resume && progress.state.next_batch > 0) warn(message::warning_source_reread());
    saved = Saved{position(), found.directory};
    resumed = true;
  }

  struct Position {
    TrainState state;
    bool evaluated;
    bool evaluation_pending;
    bool operator==(const Position&) const = default;
  };
  struct Saved {
    Position position;
    std::filesystem::path directory;
  };

  Position position() const {
    Position here{progress.state, progress.evaluated, progress.evaluation_pending};
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
      log("checkpoint", {}, saved->directory.string());
    }
    writer->name("last", saved->directory);
    if (best) writer->name("best", saved->directory);
    if (final) writer->name("final", saved->directory);
    if (config.keep_checkpoints) writer->retire(*config.keep_checkpoints, progress.run_id);
  }

  // ---- evaluation ----

  Verdict evaluate_now() {
    EvaluationResults results;
    {
      std::optional<WeightAverage::Swap> swap;
      if (average) swap.emplace(*average);
      results = evaluate();
    }
    std::vector<std::pair<std::string, double>> values;
    for (const auto& [set, metrics] : results) {
      for (const auto& [name, value] : metrics) values.emplace_back(set + "/" + name, value);
    }
    log("evaluate", values, {});
    progress.evaluated = true;
    progress.evaluation_pending = false;
    if (!config.monitor) return {};
    for (const auto& [name, value] : values) {
      if (name == config.monitor->metric()) return config.monitor->judge(value, state());
    }
    throw message::unknown_monitor_metric(config.monitor->metric(), values);
  }

  void evaluate_and_save(bool evaluation_due, bool checkpoint_due) {
    Verdict verdict;
    if (evaluation_due) verdict = evaluate_now();
    if (checkpoint_due || verdict.improved) save(verdict.improved, /*final=*/false);
  }

  // ---- the window ----

  double factor() const { return progress.schedule ? progress.schedule->factor(progress.state.step) : 1.0; }

  void put_buffers_back() {
    const c10::AutoGradMode no_grad(false);
    if (!buffers.empty()) at::_foreach_copy_(buffers, buffers_before_window);
  }

  void log_training(double gradient_norm) {
    if (!parts.logger) return progress.log_totals.clear();
    std::vector<std::pair<std::string, double>> values;
    for (auto& [name, mean] : progress.log_totals.means()) values.emplace_back("train/" + name, mean);
    const auto& groups = optimizer.group_names();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      values.emplace_back(groups.size() == 1 ? "lr" : "lr/" + groups[i], optimizer.rate(i));
    }
    values.emplace_back("grad_norm", gradient_norm);
    log("train", std::move(values), {});
    progress.log_totals.clear();
  }

  /// Why the run is over, or `none`.
  EndReason reason() const {
    const auto& s = progress.state;
    if (stop_reason) return EndReason::stop_request;
    if (config.max_steps && s.step >= *config.max_steps) return EndReason::max_steps;
    if (s.epoch >= config.epochs) return EndReason::epochs;
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
  NamedTensors parameters;
  OptimizerAdapter optimizer;
  std::optional<WeightAverage> average;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> buffers_before_window;
  Progress progress;

  // Of the present or last train() call.
  TrainConfig config;
  json metadata;
  StopRequest* stop = nullptr;
  Evaluate evaluate;
  std::unique_ptr<CheckpointWriter> writer;
  std::optional<std::string> stop_reason;
  std::optional<Saved> saved;
  bool resumed = false;
  std::optional<AccumulationWindow> window;
};

TrainerCore::TrainerCore(Parts parts) : impl_(std::make_unique<Impl>(std::move(parts))) {}
TrainerCore::~TrainerCore() = default;

const TrainState& TrainerCore::state() const { return impl_->progress.state; }

std::int64_t TrainerCore::updates_per_epoch() const {
  const auto& batches = impl_->parts.source.batches;
  if (!batches) throw message::unknown_length();
  const auto size = impl_->parts.accelerator.options().gradient_accumulation_steps;
  return (*batches + size - 1) / size;
}

std::int64_t TrainerCore::planned_steps(const TrainConfig& config) const {
  if (!impl_->parts.source.batches && config.max_steps) return *config.max_steps;
  const std::int64_t all = updates_per_epoch() * config.epochs;
  return config.max_steps ? std::min(all, *config.max_steps) : all;
}

void TrainerCore::set_scheduler(const WarmupDecay& schedule) {
  if (const auto found = problems(schedule); !found.empty()) throw message::invalid_settings(found);
  impl_->progress.schedule = schedule;
}

void TrainerCore::set_lr(double lr) {
  for (const auto& group : impl_->optimizer.group_names()) set_lr(group, lr);
}

void TrainerCore::set_lr(const std::string& group, double lr) {
  if (!std::isfinite(lr) || lr < 0) throw message::invalid_settings({message::problem_lr(lr)});
  const auto& groups = impl_->optimizer.group_names();
  const auto found = std::find(groups.begin(), groups.end(), group);
  if (found == groups.end()) throw message::unknown_group(group, groups);
  impl_->optimizer.set_base_lr(static_cast<std::size_t>(found - groups.begin()), lr);
}

NamedTensors TrainerCore::weights(Weights which) const {
  NamedTensors result = module_state(impl_->parts.module);
  if (which == Weights::raw) return result;
  if (!impl_->average) throw message::no_averaged_weights();
  const NamedTensors averages = impl_->average->named();
  for (auto& [name, tensor] : result) {
    for (const auto& [averaged_name, average] : averages) {
      if (name == averaged_name) tensor = average;
    }
  }
  return result;
}

std::unique_ptr<WeightAverage::Swap> TrainerCore::use(Weights which) {
  if (which == Weights::raw) return nullptr;
  if (!impl_->average) throw message::no_averaged_weights();
  return std::make_unique<WeightAverage::Swap>(*impl_->average);
}

void TrainerCore::begin(const TrainConfig& config, const TrainOptions& options, Evaluate evaluate) {
  auto& run = *impl_;
  if (const auto found = run.mistakes(config, options); !found.empty())
    throw message::invalid_settings(found);
  run.config = config;
  run.metadata = options.metadata;
  run.stop = options.stop;
  run.stop_reason = {};
  run.evaluate = std::move(evaluate);
  run.resumed = false;
  run.state().end = EndReason::none;
  run.state().stop_reason = {};

  if (!options.checkpoint_dir.empty() && run.parts.accelerator.is_main_process()) {
    run.writer = std::make_unique<CheckpointWriter>(options.checkpoint_dir);
  }
  const auto found = run.find_checkpoint(options);
  if (run.writer) run.refuse_foreign_checkpoints(options, found);
  if (found) run.resume(*found, options);
  run.parts.module.train();
  run.meet(Phase::window, 0);

  if (run.parts.logger) {
    const bool known = run.parts.source.batches || config.max_steps;
    run.parts.logger->begin(
        {.first_step = run.state().step, .planned_steps = known ? planned_steps(config) : 0},
        run.resolved_config().dump(2), {{"torch", TORCH_VERSION}});
    run.log(run.state().batches > 0 || run.resumed ? "resume" : "start", {}, {});
  }
  if (run.reason() == EndReason::none && run.writer) run.writer->remove_name("final");
  if (run.progress.evaluation_pending && run.evaluates() && !run.stop_reason) {
    run.evaluate_and_save(/*evaluation_due=*/true, /*checkpoint_due=*/false);
  }
}

bool TrainerCore::finished() const { return impl_->reason() != EndReason::none; }

AccumulationWindow& TrainerCore::open_window() {
  auto& run = *impl_;
  const c10::AutoGradMode no_grad(false);
  for (const auto& parameter : run.parameters) parameter.second.mutable_grad().reset();
  if (!run.buffers.empty()) at::_foreach_copy_(run.buffers_before_window, run.buffers);
  return run.window.emplace(
      run.parts.accelerator.options().gradient_accumulation_steps, run.progress.loss_unit,
      WindowPosition{.update = run.state().step + 1, .rank = run.parts.accelerator.rank()});
}

void TrainerCore::close_window(bool epoch_ended) {
  auto& run = *impl_;
  auto& progress = run.progress;
  auto& state = run.state();
  const Vote agreed = run.meet(Phase::window, run.window->samples());

  run.optimizer.set_rates(run.factor());
  const UpdateOutcome outcome =
      optimizer_update(*run.window, agreed.samples, run.optimizer, run.average ? &*run.average : nullptr,
                       run.config.max_grad_norm);
  const bool updated = outcome.result == UpdateResult::applied;
  if (!updated) run.put_buffers_back();

  progress.loss_unit = run.window->loss_unit();
  progress.log_totals.merge(run.window->totals());
  progress.evaluated = false;
  state.batches += run.window->microbatches();
  state.next_batch += run.window->microbatches();
  state.samples += agreed.samples;
  if (updated) ++state.step;
  if (epoch_ended) {
    ++state.epoch;
    state.next_batch = 0;
  }
  run.window.reset();

  if (!updated) run.log("skip", {}, "the window held no samples");
  if (updated && state.step % run.config.log_every == 0) run.log_training(outcome.gradient_norm);
  if (updated && run.parts.logger) run.parts.logger->progress(state.step);

  const auto due = [&](const std::optional<Interval>& interval) {
    return interval && interval->due(state.step, updated, state.epoch, epoch_ended);
  };
  const bool evaluation_due = run.evaluates() && due(run.config.evaluate_every);
  switch (run.reason()) {
    case EndReason::none:
      return run.evaluate_and_save(evaluation_due, due(run.config.checkpoint_every));
    case EndReason::stop_request:
      progress.evaluation_pending = evaluation_due;
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
  Verdict verdict;
  if (!stopped && run.evaluates() && !run.progress.evaluated) verdict = run.evaluate_now();
  run.save(verdict.improved, /*final=*/!stopped);
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
