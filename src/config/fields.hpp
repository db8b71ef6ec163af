// The fields of each type and the names of each enumerator, listed once for both directions of JSON.
#pragma once

#include <concepts>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/config/data_loader_options.hpp"
#include "lockstep/config/interval.hpp"
#include "lockstep/config/monitor.hpp"
#include "lockstep/config/precision.hpp"
#include "lockstep/config/schedule.hpp"
#include "lockstep/config/train_config.hpp"
#include "lockstep/config/train_state.hpp"

namespace lockstep {

template <class T, class U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

/// A Monitor's fields, as a Monitor shows them and takes them.
struct MonitorFields {
  std::string metric;
  MonitorOptions options;
};

void visit_fields(Is<MonitorFields> auto& monitor, auto&& field) {
  field("metric", monitor.metric);
  field("direction", monitor.options.direction);
  field("patience", monitor.options.patience);
  field("min_delta", monitor.options.min_delta);
  field("start_epoch", monitor.options.start_epoch);
}

void visit_fields(Is<TrainConfig> auto& config, auto&& field) {
  field("epochs", config.epochs);
  field("max_steps", config.max_steps);
  field("limit_train_batches", config.limit_train_batches);
  field("log_every", config.log_every);
  field("log_histograms_every", config.log_histograms_every);
  field("check_ranks_every", config.check_ranks_every);
  field("evaluate_every", config.evaluate_every);
  field("evaluate_first", config.evaluate_first);
  field("evaluate_raw", config.evaluate_raw);
  field("limit_evaluation_batches", config.limit_evaluation_batches);
  field("checkpoint_every", config.checkpoint_every);
  field("keep_checkpoints", config.keep_checkpoints);
  field("background_saves", config.background_saves);
  field("skip_busy_saves", config.skip_busy_saves);
  field("fail_on_save_error", config.fail_on_save_error);
  field("max_grad_norm", config.max_grad_norm);
  field("max_grad_value", config.max_grad_value);
  field("late_finite_check", config.late_finite_check);
  field("monitor", config.monitor);
  field("restore_best", config.restore_best);
  field("debug", config.debug);
  field("overfit_one_batch", config.overfit_one_batch);
}

void visit_fields(Is<TrainState> auto& state, auto&& field) {
  field("epoch", state.epoch);
  field("next_batch", state.next_batch);
  field("step", state.step);
  field("batches", state.batches);
  field("samples", state.samples);
  field("best_metric", state.best_metric);
  field("best_step", state.best_step);
  field("evaluations_without_improvement", state.evaluations_without_improvement);
  field("stop_reason", state.stop_reason);
  field("end", state.end);
}

void visit_fields(Is<DataLoaderOptions> auto& options, auto&& field) {
  field("batch_size", options.batch_size);
  field("shuffle", options.shuffle);
  field("seed", options.seed);
  field("workers", options.workers);
  field("drop_last", options.drop_last);
  field("pin_memory", options.pin_memory);
  field("even_batches", options.even_batches);
  field("split_batches", options.split_batches);
}

void visit_fields(Is<LossScalerOptions> auto& options, auto&& field) {
  field("initial_scale", options.initial_scale);
  field("growth_factor", options.growth_factor);
  field("backoff_factor", options.backoff_factor);
  field("growth_interval", options.growth_interval);
}

void visit_fields(Is<WarmupDecay> auto& schedule, auto&& field) {
  field("total_steps", schedule.total_steps);
  field("warmup_steps", schedule.warmup_steps);
  field("start_factor", schedule.start_factor);
  field("minimum_factor", schedule.minimum_factor);
  field("decay", schedule.decay);
}

void visit_fields(Is<MultiStepDecay> auto& schedule, auto&& field) {
  field("milestones", schedule.milestones);
  field("gamma", schedule.gamma);
}

void visit_fields(Is<ExponentialDecay> auto& schedule, auto&& field) { field("gamma", schedule.gamma); }

void visit_fields(Is<PolynomialDecay> auto& schedule, auto&& field) {
  field("total_steps", schedule.total_steps);
  field("power", schedule.power);
  field("minimum_factor", schedule.minimum_factor);
}

void visit_fields(Is<InverseSqrtDecay> auto& schedule, auto&& field) {
  field("warmup_steps", schedule.warmup_steps);
  field("start_factor", schedule.start_factor);
}

void visit_fields(Is<CosineRestarts> auto& schedule, auto&& field) {
  field("period", schedule.period);
  field("period_multiplier", schedule.period_multiplier);
  field("minimum_factor", schedule.minimum_factor);
}

void visit_fields(Is<OneCycle> auto& schedule, auto&& field) {
  field("total_steps", schedule.total_steps);
  field("warmup_fraction", schedule.warmup_fraction);
  field("start_factor", schedule.start_factor);
  field("minimum_factor", schedule.minimum_factor);
  field("anneal", schedule.anneal);
  field("three_phase", schedule.three_phase);
}

void visit_fields(Is<WarmupStableDecay> auto& schedule, auto&& field) {
  field("total_steps", schedule.total_steps);
  field("warmup_steps", schedule.warmup_steps);
  field("decay_steps", schedule.decay_steps);
  field("start_factor", schedule.start_factor);
  field("minimum_factor", schedule.minimum_factor);
  field("decay", schedule.decay);
}

void visit_fields(Is<SequentialSchedule> auto& schedule, auto&& field) {
  field("parts", schedule.parts);
  field("milestones", schedule.milestones);
}

void visit_fields(Is<LambdaSchedule> auto& schedule, auto&& field) { field("name", schedule.name); }

void visit_fields(Is<Plateau> auto& schedule, auto&& field) {
  field("metric", schedule.metric);
  field("direction", schedule.direction);
  field("factor", schedule.factor);
  field("patience", schedule.patience);
  field("threshold", schedule.threshold);
  field("threshold_mode", schedule.threshold_mode);
  field("cooldown", schedule.cooldown);
  field("minimum_factor", schedule.minimum_factor);
}

void visit_fields(Is<PlateauState> auto& state, auto&& field) {
  field("factor", state.factor);
  field("best", state.best);
  field("bad_evaluations", state.bad_evaluations);
  field("cooldown_left", state.cooldown_left);
}

/// Every enumerator with its name.
template <class Enum>
using Names = std::vector<std::pair<Enum, std::string>>;

inline Names<Direction> names(Direction) {
  return {{Direction::minimize, "minimize"}, {Direction::maximize, "maximize"}};
}

inline Names<WarmupDecay::Decay> names(WarmupDecay::Decay) {
  using enum WarmupDecay::Decay;
  return {{cosine, "cosine"}, {linear, "linear"}, {constant, "constant"}};
}

inline Names<OneCycle::Anneal> names(OneCycle::Anneal) {
  return {{OneCycle::Anneal::cosine, "cosine"}, {OneCycle::Anneal::linear, "linear"}};
}

inline Names<WarmupStableDecay::Decay> names(WarmupStableDecay::Decay) {
  using enum WarmupStableDecay::Decay;
  return {{linear, "linear"}, {cosine, "cosine"}, {one_minus_sqrt, "one_minus_sqrt"}};
}

inline Names<Plateau::ThresholdMode> names(Plateau::ThresholdMode) {
  return {{Plateau::ThresholdMode::relative, "relative"}, {Plateau::ThresholdMode::absolute, "absolute"}};
}

/// For enumerations that have a to_string() of their own.
template <class Enum>
Names<Enum> names_of(std::initializer_list<Enum> all) {
  Names<Enum> names;
  for (const Enum enumerator : all) names.emplace_back(enumerator, to_string(enumerator));
  return names;
}

inline Names<Precision> names(Precision) {
  using enum Precision;
  return names_of({fp32, fp64, bf16, fp16, bf16_mixed, fp16_mixed});
}

inline Names<EndReason> names(EndReason) {
  using enum EndReason;
  return names_of({none, epochs, max_steps, early_stop, stop_request});
}

}  // namespace lockstep
