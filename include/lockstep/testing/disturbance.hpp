// The invariants of everything that must not disturb training: evaluations, lost windows, loader threads,
// observers; and of the schedule, which nothing disturbs.
#pragma once

#include <algorithm>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/testing/case.hpp"
#include "lockstep/testing/record.hpp"

namespace lockstep::testing {

namespace detail {

/// A window that does not become an update.
enum class LostWindow { empty, non_finite_loss, non_finite_gradient, throwing_step };

inline StepOutput spoilt(LostWindow kind, StepOutput output) {
  switch (kind) {
    case LostWindow::empty:
      output.num_samples = 0;
      break;
    case LostWindow::non_finite_loss:
      output.loss = output.loss * std::numeric_limits<double>::quiet_NaN();
      break;
    case LostWindow::non_finite_gradient:  // adds zero, with an infinite derivative
      output.loss = output.loss + (output.loss - output.loss.detach()).sqrt();
      break;
    case LostWindow::throwing_step:
      throw Interruption();
  }
  return output;
}

/// The logged rates, one list for each update.
inline std::vector<std::pair<std::int64_t, std::vector<double>>> logged_rates(
    const std::vector<LogEvent>& events) {
  std::vector<std::pair<std::int64_t, std::vector<double>>> result;
  for (const auto& event : events) {
    if (event.event != "train") continue;
    auto& rates = result.emplace_back(event.step, std::vector<double>()).second;
    for (const auto& [name, value] : event.values) {
      if (name == "lr" || name.starts_with("lr/")) rates.push_back(value);
    }
  }
  return result;
}

/// Whether every update that `run` logged used the base rate times the schedule's factor.
template <Case C>
Finding compare_rates(const C& c, CaseRun<C>& run, const std::string& runs) {
  const Schedule schedule = *c.settings().schedule;
  const auto optimizer = c.optimizer(run.model());  // a fresh one, whose rates nobody has touched
  const auto logged = logged_rates(run.record().events);
  for (const auto& [update, rates] : logged) {
    for (std::size_t i = 0; i < rates.size(); ++i) {
      const double expected = optimizer->param_groups()[i].options().get_lr() * schedule.factor(update - 1);
      if (rates[i] == expected) continue;
      return {runs + ": the rate of update " + std::to_string(update) + " is " + text_of(rates[i]) +
              " instead of " + text_of(expected)};
    }
  }
  return {logged.empty() ? runs + ": no rate was logged" : ""};
}

}  // namespace detail

/// Evaluating changes no training bit: after no update, after every one, and before every microbatch, raw and
/// averaged.
template <EvaluatedCase C>
[[nodiscard]] Finding check_evaluate(const C& c) {
  const ScratchDirectory scratch;
  auto settings = detail::plain_settings(c);
  CaseRun<C> quiet(c, settings, scratch.path() / "quiet");
  quiet.train();
  Record expected = quiet.record();

  CaseRun<C> busy(c, settings, scratch.path() / "busy");
  busy.set_intercept([&](std::int64_t, const auto& step) {
    (void)busy.trainer().evaluate(Weights::raw);
    if (settings.ema_decay) (void)busy.trainer().evaluate(Weights::ema);
    return step();
  });
  busy.train();
  if (auto found =
          detail::finding("evaluated before every microbatch", first_difference(expected, busy.record()));
      !found.holds()) {
    return found;
  }

  settings.config.evaluate_every = Interval{.every = 1, .unit = Interval::Unit::step};
  CaseRun<C> usual(c, settings, scratch.path() / "usual");
  usual.train();
  Record evaluated = usual.record();
  std::erase_if(evaluated.events, [](const LogEvent& event) { return event.event == "evaluate"; });
  return detail::finding("evaluated after every update", first_difference(expected, evaluated));
}

/// A window without samples changes no parameter, optimizer state, average or buffer and makes no update; one
/// that fails, by a loss or gradient that is not finite or an exception from the Step, changes not even
/// TrainState. In fp16 a gradient that is not finite is an overflow, whose window is skipped like an empty
/// one. Tried as the very first window and after one update.
template <Case C>
[[nodiscard]] Finding check_skip(const C& c) {
  using detail::LostWindow;
  const std::vector<std::pair<LostWindow, std::string>> kinds = {
      {LostWindow::empty, "a window without samples"},
      {LostWindow::non_finite_loss, "a loss that is not finite"},
      {LostWindow::non_finite_gradient, "a gradient that is not finite"},
      {LostWindow::throwing_step, "a Step that throws"}};
  const auto settings = detail::plain_settings(c);
  const bool scales = scales_loss(settings.accelerator.precision);
  for (const auto& [kind, what] : kinds) {
    for (const std::int64_t updates : {0, 1}) {
      const auto window = settings.accelerator.gradient_accumulation_steps;
      CaseRun<C> run(c, settings);
      if (updates > 0) {
        auto until = settings.config;
        until.max_steps = updates;
        run.train(until);
      }
      // The Step has drawn from the generators before its window was lost.
      Record before = without(run.record(), "generator");

      StopRequest stop;
      const auto left_in_epoch = run.train_loader().size() - run.trainer().state().next_batch;
      const bool one_microbatch = std::min(window, left_in_epoch) == 1;
      const auto first = run.microbatches() + 1;
      run.set_intercept([&, lost = kind](std::int64_t microbatch, const auto& step) {
        stop.request("a test of an invariant");  // one window is enough
        // A failure comes late in its window, when there are gradients already.
        const bool spoil = lost == LostWindow::empty || one_microbatch || microbatch > first;
        return spoil ? detail::spoilt(lost, step()) : step();
      });
      bool failed = false;
      try {
        run.train({.stop = &stop});
      } catch (const NonFiniteError&) {
        failed = true;
      } catch (const detail::Interruption&) {
        failed = true;
      }
      const auto runs = what + " after " + std::to_string(updates) + " updates";
      const bool skips = kind == LostWindow::empty || (scales && kind == LostWindow::non_finite_gradient);
      if (failed == skips) return {runs + ": train() " + (failed ? "threw" : "did not throw")};

      Record after = without(run.record(), "generator");
      auto& state = before.state;
      state.end = after.state.end;
      state.stop_reason = after.state.stop_reason;
      if (!failed) {  // it consumed data, which is all it did
        state.batches = after.state.batches;
        state.next_batch = after.state.next_batch;
        state.epoch = after.state.epoch;
        if (kind != LostWindow::empty) state.samples = after.state.samples;
      }
      if (auto found = detail::finding(runs, first_difference(before, after)); !found.holds()) return found;
    }
  }
  return {};
}

/// The number of threads that load data changes no bit, augmentation included.
template <Case C>
[[nodiscard]] Finding check_workers(const C& c) {
  const ScratchDirectory scratch;
  const auto with_workers = [&](int workers) {
    auto settings = c.settings();
    settings.config.keep_checkpoints = {};
    settings.loader.workers = workers;
    CaseRun<C> run(c, settings, scratch.path() / std::to_string(workers));
    run.train();
    return run.record();
  };
  const Record expected = with_workers(0);
  for (const int workers : {1, 3}) {
    const auto difference = first_difference(expected, with_workers(workers));
    if (!difference.empty()) return detail::finding(std::to_string(workers) + " loader threads", difference);
  }
  return {};
}

/// A logger, the case's own sink and checkpoints after every update change no bit.
template <Case C>
[[nodiscard]] Finding check_observers(const C& c) {
  auto settings = c.settings();
  settings.config.keep_checkpoints = {};
  const auto observed = [&](const std::filesystem::path& log_dir, const TrainOptions& options) {
    CaseRun<C> run(c, settings, log_dir);
    run.train(options);
    Record record = run.record();
    record.events.clear();
    return record;
  };
  const Record expected = observed({}, {});
  const ScratchDirectory scratch;
  settings.config.log_every = 1;
  if (auto found =
          detail::finding("logged", first_difference(expected, observed(scratch.path() / "log", {})));
      !found.holds()) {
    return found;
  }
  settings.config.checkpoint_every = Interval{.every = 1, .unit = Interval::Unit::step};
  for (const bool background : {false, true}) {
    settings.config.background_saves = background;
    const std::string how = background ? "saved in the background" : "saved";
    if (auto found = detail::finding(how, first_difference(expected, observed({}, {.checkpoint_dir = scratch.path() / how})));
        !found.holds()) {
      return found;
    }
  }
  return {};
}

/// The rate of update u is base * factor(u - 1), whatever came before it: a window without samples, a stop,
/// windows of another length. The case has a schedule. Errors: std::invalid_argument if it has none.
template <Case C>
[[nodiscard]] Finding check_schedule(const C& c) {
  auto settings = detail::plain_settings(c);
  if (!settings.schedule) throw std::invalid_argument("check_schedule() needs a case with a schedule");
  const ScratchDirectory scratch;
  const auto window = settings.accelerator.gradient_accumulation_steps;

  CaseRun<C> plain(c, settings, scratch.path() / "plain");
  plain.train();
  if (auto found = detail::compare_rates(c, plain, "undisturbed"); !found.holds()) return found;

  CaseRun<C> skipping(c, settings, scratch.path() / "skipping");
  skipping.set_intercept([window](std::int64_t microbatch, const auto& step) {
    const bool first_window = microbatch <= window;
    return first_window ? detail::spoilt(detail::LostWindow::empty, step()) : step();
  });
  skipping.train();
  if (auto found = detail::compare_rates(c, skipping, "a window without samples"); !found.holds())
    return found;

  CaseRun<C> stopping(c, settings, scratch.path() / "stopping");
  StopRequest stop;
  stopping.set_intercept([window, &stop](std::int64_t microbatch, const auto& step) {
    if (microbatch == window + 1) stop.request("a test of an invariant");
    return step();
  });
  stopping.train({.stop = &stop});
  stopping.train();
  if (auto found = detail::compare_rates(c, stopping, "stopped and continued"); !found.holds()) return found;

  ++settings.accelerator.gradient_accumulation_steps;
  CaseRun<C> longer(c, settings, scratch.path() / "longer");
  longer.train();
  return detail::compare_rates(c, longer, "longer windows");
}

}  // namespace lockstep::testing
