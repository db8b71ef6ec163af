// The invariants of interruption: a run that was killed or stopped and resumed equals one that was not.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/testing/case.hpp"
#include "lockstep/testing/record.hpp"

namespace lockstep::testing {

namespace detail {

struct Uninterrupted {
  Record record;
  std::int64_t microbatches = 0;
};

template <Case C>
Uninterrupted run_through(const C& c) {
  const ScratchDirectory scratch;
  CaseRun<C> run(c, c.settings(), scratch.path() / "log");
  run.train({.checkpoint_dir = scratch.path() / "checkpoints"});
  return {run.record(), run.microbatches()};
}

/// `asked`, or the first, the second, the middle and the last.
inline std::vector<std::int64_t> microbatches_of(const Uninterrupted& whole,
                                                 const std::vector<std::int64_t>& asked) {
  if (!asked.empty()) return asked;
  std::vector<std::int64_t> some = {1, 2, (whole.microbatches + 1) / 2, whole.microbatches};
  some.erase(std::unique(some.begin(), some.end()), some.end());
  return some;
}

/// Trains until microbatch `last`, whose Step throws.
template <Case C>
void train_until_killed(CaseRun<C>& run, const TrainOptions& options, std::int64_t last) {
  run.set_intercept([last](std::int64_t microbatch, const auto& step) {
    if (microbatch == last) throw Interruption();
    return step();
  });
  try {
    run.train(options);
  } catch (const Interruption&) {
  }
}

/// Trains until the update that microbatch `last` belongs to, during which a stop is requested.
template <Case C>
void train_until_stopped(CaseRun<C>& run, TrainOptions options, std::int64_t last) {
  StopRequest stop;
  run.set_intercept([&stop, last](std::int64_t microbatch, const auto& step) {
    if (microbatch == last) stop.request("a test of an invariant");
    return step();
  });
  options.stop = &stop;
  run.train(options);
  run.set_intercept({});
}

/// Cuts a run off at each of the microbatches with `train_until(run, options, microbatch)`, resumes it in a
/// new Trainer and compares it with the whole one.
template <Case C>
Finding compare_resumed(const C& c, const Uninterrupted& whole, const std::vector<std::int64_t>& microbatches,
                        const std::string& how, auto train_until) {
  for (const auto microbatch : microbatches) {
    const ScratchDirectory scratch;
    TrainOptions options{.checkpoint_dir = scratch.path() / "checkpoints"};
    CaseRun<C> first(c, c.settings(), scratch.path() / "log");
    train_until(first, options, microbatch);

    CaseRun<C> second(c, c.settings(), scratch.path() / "log-of-resumed");
    options.resume_from = latest;
    second.train(options);
    Record resumed = second.record();
    resumed.events = merged_events(first.record().events, resumed.events);
    const auto difference = first_difference(whole.record, resumed);
    if (!difference.empty()) {
      return finding(how + " at microbatch " + std::to_string(microbatch) + " and resumed", difference);
    }
  }
  return {};
}

}  // namespace detail

/// A run whose Step throws at a microbatch, resumed from its last checkpoint, equals one that was not
/// interrupted: weights, optimizer state, averages, generators, TrainState, and everything logged. At each of
/// `microbatches`, counted from 1; empty: at the first, the second, the middle and the last.
template <Case C>
[[nodiscard]] Finding check_resume(const C& c, const std::vector<std::int64_t>& microbatches = {}) {
  const auto whole = detail::run_through(c);
  return detail::compare_resumed(c, whole, detail::microbatches_of(whole, microbatches), "killed",
                                 detail::train_until_killed<C>);
}

/// A run that is asked to stop during a microbatch and goes on, in a new Trainer or in its own, equals one
/// that was not stopped. `microbatches` as for check_resume().
template <Case C>
[[nodiscard]] Finding check_stop(const C& c, const std::vector<std::int64_t>& microbatches = {}) {
  const auto whole = detail::run_through(c);
  const auto chosen = detail::microbatches_of(whole, microbatches);
  for (const auto microbatch : chosen) {
    const ScratchDirectory scratch;
    CaseRun<C> run(c, c.settings(), scratch.path() / "log");
    const TrainOptions options{.checkpoint_dir = scratch.path() / "checkpoints"};
    detail::train_until_stopped(run, options, microbatch);
    run.train(options);
    const auto difference = first_difference(whole.record, run.record());
    if (!difference.empty()) {
      return detail::finding("stopped at microbatch " + std::to_string(microbatch) + " and continued",
                             difference);
    }
  }
  return detail::compare_resumed(c, whole, chosen, "stopped", detail::train_until_stopped<C>);
}

}  // namespace lockstep::testing
