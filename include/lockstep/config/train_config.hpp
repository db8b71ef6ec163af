// The settings of one call to Trainer::train().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/config/batch_limit.hpp"
#include "lockstep/config/interval.hpp"
#include "lockstep/config/monitor.hpp"

namespace lockstep {

/// Limits are cumulative over resumes and over several train() calls.
struct TrainConfig {
  /// Completed epochs at which the run ends; 0 only evaluates. Unset: max_steps alone ends it.
  std::optional<std::int64_t> epochs = {};
  /// Successful updates at which the run ends: exact, also inside an epoch. Unset: no limit.
  std::optional<std::int64_t> max_steps = {};
  /// Of each epoch; the epoch ends there. Unset: all.
  std::optional<BatchLimit> limit_train_batches = {};
  /// Updates between two training log lines.
  std::int64_t log_every = 10;
  /// Log how weights and their gradients are distributed (`weights/<name>`, `gradients/<name>`; the gradient as the
  /// optimizer got it), at updates or ends of epochs. Reads all of them to the host. Unset: never.
  std::optional<Interval> log_histograms_every = {};
  /// Compare the weights of all ranks, bit for bit; also at each checkpoint then.
  std::optional<Interval> check_ranks_every = {};
  /// Unset: no evaluation at all. Sets with an interval of their own (EvaluatorOptions::every) follow that.
  std::optional<Interval> evaluate_every = Interval{.every = 1, .unit = Interval::Unit::epoch};
  /// Evaluate once before the run's first update too; the monitor judges it like any other.
  bool evaluate_first = false;
  /// With averaged weights: evaluate the raw ones as well, logged as `raw/<set>/<metric>`.
  bool evaluate_raw = false;
  /// Of each set during training. Unset: all.
  std::optional<BatchLimit> limit_evaluation_batches = {};
  /// Also in seconds, or by Interval::young_daly(). Unset: only last, best and final.
  std::optional<Interval> checkpoint_every = Interval{.every = 1, .unit = Interval::Unit::epoch};
  /// The newest ones that are kept, besides best, last and final. Unset: all.
  std::optional<std::int64_t> keep_checkpoints = {};
  /// Write checkpoints in a thread while training goes on; the same files. Costs a copy of the saved state in host memory.
  bool background_saves = true;
  /// Leave out a save that is due by checkpoint_every while the one before it is still being written, instead of waiting
  /// for that. How many were left out is logged.
  bool skip_busy_saves = false;
  /// A save that fails ends the run at the next update. Else it is a warning, and the next one that is due tries again. In
  /// both cases train() throws if the state that it ends with could not be saved.
  bool fail_on_save_error = false;
  /// Clip gradients to this global norm. Unset: the norm is measured and logged only.
  std::optional<double> max_grad_norm = {};
  /// Clip every element of the window's gradient to this size, after the norm. Unset: not done.
  std::optional<double> max_grad_value = {};
  /// Let the device decide whether an update's gradients are finite, and read that while the next window runs, so that an
  /// update does not wait for the device. Where the end of an update is logged, evaluated or saved it is read at once.
  bool late_finite_check = false;
  /// What decides about the best model and about stopping early. Unset: neither happens.
  std::optional<Monitor> monitor = {};
  /// After a normal end the model holds the best weights, until the next train() call, which goes on from the last ones.
  bool restore_best = false;
  /// Try whether a program runs from end to end: one batch a rank of the training data, of each evaluation set and of the
  /// test, at most one epoch, no loader threads, no files, and a warning. planned_steps(), updates_per_epoch() and the
  /// schedule keep their size. Also by LOCKSTEP_DEBUG=1. The Trainer goes on from where it stands, and so does what
  /// follows in it.
  bool debug = false;
  /// Try whether the model can learn at all: every window gets the first batches of epoch 0, while epochs keep their
  /// length. A warning says so.
  bool overfit_one_batch = false;
};

/// Every mistake in the settings themselves, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const TrainConfig& config);

}  // namespace lockstep
