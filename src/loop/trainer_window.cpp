#include "loop/trainer_impl.hpp"

#include <ATen/ops/_foreach_copy.h>
#include <c10/core/GradMode.h>

#include <tuple>
#include <utility>

#include "lockstep/base/messages.hpp"
#include "lockstep/tensors/profiler_range.hpp"
#include "loop/closure_update.hpp"
#include "loop/histograms.hpp"

namespace lockstep::detail {

UpdateSettings TrainerCore::Impl::update_settings() {
  return {.max_norm = config.max_grad_norm,
          .max_value = config.max_grad_value,
          .keep_gradients = config.log_histograms_every.has_value(),
          .before_clip = caller(hooks().before_clip),
          .before_update = caller(hooks().before_update)};
}

UpdateOutcome TrainerCore::Impl::update(std::int64_t samples_on_all_ranks) {
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

bool TrainerCore::Impl::may_be_late(const AgreedWindow& agreed, const RunRequests& requests) {
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

void TrainerCore::Impl::launch_late(const AgreedWindow& agreed) {
  const ProfilerRange range("lockstep::update");
  auto norm = launch_update(*window, agreed.samples, optimizer, moved(), update_settings(),
                            {.now = modules.buffers(), .before = buffers_before_window});
  late.emplace(LateUpdate{.window = std::move(*window),
                          .agreed = agreed,
                          .random_before = std::move(random_before_window),
                          .gradient_norm = std::move(norm)});
  window.reset();
}

void TrainerCore::Impl::settle_late() {
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

void TrainerCore::Impl::settle_late_at_failure() noexcept {
  try {
    settle_late();
  } catch (...) {
    warn(text_of(std::current_exception()));
  }
}

void TrainerCore::Impl::count(const AccumulationWindow& counted, const AgreedWindow& agreed, const UpdateOutcome& outcome) {
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

void TrainerCore::Impl::log_skip(const UpdateOutcome& outcome, double loss_scale) {
  agreement.locally([&] {
    if (outcome.result == UpdateResult::skipped_empty) log("skip", {}, "the window held no samples");
    if (outcome.result == UpdateResult::skipped_overflow) {
      log("skip", {{"loss_scale", loss_scale}},
          message::overflow_skipped(loss_scale, progress.loss_scaler->scale()));
    }
  });
}

void TrainerCore::Impl::put_buffers_back() {
  const c10::AutoGradMode no_grad(false);
  if (!modules.buffers().empty()) at::_foreach_copy_(modules.buffers(), buffers_before_window);
}

void TrainerCore::Impl::lap(Activity activity) {
  if (parts.logger) meter.lap(activity);
}

void TrainerCore::Impl::log_histograms() {
  if (!parts.logger || !is_main()) return;
  std::vector<Histogram> histograms;
  for (const auto& member : optimizer.arena().members()) {
    const auto& [name, parameter] = std::tie(member.name, member.parameter);
    histograms.push_back(histogram("weights/" + name, parameter));
    if (member.touched) histograms.push_back(histogram("gradients/" + name, parameter.grad()));
  }
  log("histograms", {}, {}, std::move(histograms));
}

void TrainerCore::Impl::log_training(double gradient_norm, double loss_scale) {
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

bool TrainerCore::Impl::at_epoch_end() const {
  const auto& s = progress.state;
  return s.next_batch == 0 && !progress.history.empty() && progress.history.back().epoch == s.epoch;
}

void TrainerCore::Impl::append_rates(Values& values) const {
  const auto& groups = optimizer.group_names();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    values.emplace_back(groups.size() == 1 ? "lr" : "lr/" + groups[i], optimizer.rate(i));
  }
}

void TrainerCore::Impl::record_epoch() {
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

// ---- TrainerCore ----

void TrainerCore::lap(Activity activity) { impl_->lap(activity); }

void TrainerCore::add(const StepOutput& output, bool last) {
  auto& run = *impl_;
  run.call(run.hooks().after_loss, output);
  // Sums under way could not be looked at.
  run.shared.add(*run.window, output, last && run.hooks().before_sync.empty(), run.parts.backward);
  run.lap(Activity::step);
}

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

}  // namespace lockstep::detail
