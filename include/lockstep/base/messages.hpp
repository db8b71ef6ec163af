// Every error the library can throw, one factory a message: `throw message::empty_source();`.
//
// Internal to lockstep, but visible because class templates throw too. The texts are in src/base/messages.cpp.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.hpp"

namespace lockstep::message {

// ---- config ----
/// One error that lists every mistake found; `problems` are sentences that end with their remedy.
ConfigError invalid_settings(const std::vector<std::string>& problems);
ConfigError invalid_interval(const std::string& text);
/// `pointer` is the JSON pointer of the field; `problem` goes on from it: "is missing, add it".
ConfigError invalid_json_field(const std::string& pointer, const std::string& problem);
/// `source` names the text, a file for example; `problem` goes on from it.
ConfigError invalid_json_text(const std::string& source, const std::string& problem);
/// For invalid_settings(); `source` is empty for a value that no layer gave.
std::string problem_value(const std::string& pointer, const std::string& source, const std::string& problem);
std::string problem_device(const std::string& text);
ConfigError signals_already_caught();

// ---- data ----
DataError empty_dataset();
DataError dataset_without_size();
/// Rows of a TensorDataset's tensors, -1 for a tensor that has none.
DataError rows_differ(std::int64_t data_rows, std::int64_t target_rows);
/// `first` and `other` describe two samples of one batch.
DataError uneven_samples(const std::string& first, const std::string& other);
DataError position_past_end(std::int64_t first_batch, std::int64_t batches);

// ---- optim ----
/// Sentences for invalid_settings() and checkpoint_does_not_fit() have names that begin with `problem_`.
std::string problem_weight_decay(double value);
std::string problem_ema_decay(double value);
std::string problem_lr(double value);
std::string problem_accumulation(std::int64_t value);
std::string problem_loss_scaler(const std::string& precision);
ConfigError no_trainable_parameter();
ConfigError foreign_parameter(std::size_t group, const std::vector<std::int64_t>& shape);
ConfigError duplicate_parameter(const std::string& name, std::size_t first_group, std::size_t second_group);
ConfigError unknown_group(const std::string& group, const std::vector<std::string>& known);
ConfigError parameter_not_flat(const std::string& parameter, const std::string& why);
StepError parameter_moved(const std::string& parameter, const std::string& before, const std::string& now);
StepError gradient_replaced(const std::string& parameter);
std::string problem_optimizer_option(const std::string& group, const std::string& option, double value,
                                     const std::string& allowed);
std::string problem_two_rates(const std::string& group);
ConfigError device_not_available(const std::string& device);
CheckpointError optimizer_state_not_saved(const std::string& field, const std::string& type);
std::string problem_optimizer_kind(const std::string& saved, const std::string& own);
std::string problem_group_count(std::size_t saved, std::size_t own);
std::string problem_group_parameters(std::size_t group, const std::string& name);

// ---- files ----
/// `error` is an errno of the operating system.
FileError cannot_read_file(const std::string& path, int error);
FileError cannot_read_file(const std::string& path, const std::string& problem);
FileError cannot_write_file(const std::string& path, int error);
FileError cannot_create_directory(const std::string& path, int error);
FileError checkpoint_directory_in_use(const std::string& path);
ConfigError cannot_store_tensor(const std::string& name, const std::string& problem);
CheckpointError damaged_safetensors(const std::string& path, const std::string& problem);
ConfigError unknown_weights_format(const std::string& path);
/// `hints` are texts made by hint_rename().
CheckpointError weights_do_not_fit(const std::string& path, const std::vector<std::string>& problems,
                                   const std::vector<std::string>& hints);
std::string problem_missing_weight(const std::string& name);
std::string problem_left_over_weight(const std::string& name);
std::string problem_nothing_fits();
std::string problem_renamed_twice(const std::string& first, const std::string& second, const std::string& name);
std::string problem_unused_rename(const std::string& beginning);
std::string problem_unused_skip(const std::string& beginning);
std::string hint_rename(const std::string& from, const std::string& to);
/// `present` are the checkpoints and names that could have been meant.
CheckpointError checkpoint_not_found(const std::string& path, const std::string& problem,
                                     const std::vector<std::string>& present);
CheckpointError damaged_checkpoint(const std::string& file, const std::string& problem);
CheckpointError checkpoint_format_version(const std::string& file, std::int64_t found, std::int64_t known);
/// `passed_over` are texts made by checkpoint_passed_over().
CheckpointError no_valid_checkpoint(const std::string& root, const std::vector<std::string>& passed_over);
/// A warning, not an error: why a checkpoint is not resumed from.
std::string checkpoint_passed_over(const std::string& directory, const std::string& reason);

// ---- watch ----
FileError run_directory_in_use(const std::string& path);
/// Warnings, not errors. `sink` is what a person calls it.
std::string sink_failed(const std::string& sink, const std::string& reason);
std::string events_were_lost(const std::string& sink, std::int64_t count);

// ---- loop ----
StepError missing_num_samples();
StepError negative_num_samples(std::int64_t value);
StepError num_samples_not_integer(const std::string& type);
StepError num_samples_not_scalar(std::int64_t elements);
StepError undefined_loss();
StepError loss_not_scalar(const std::vector<std::int64_t>& shape);
StepError loss_not_floating(const std::string& type);
StepError loss_without_gradient();
StepError reserved_metric_name(const std::string& name);
StepError negative_metric_count(const std::string& name, std::int64_t count);
StepError metric_not_scalar(const std::string& name, std::int64_t elements);
StepError metric_count_not_scalar(const std::string& name, std::int64_t elements);
StepError metric_count_not_integer(const std::string& name, const std::string& type);
/// `update` and `microbatch` count from 1.
NonFiniteError non_finite_loss(double value, std::int64_t update, std::int64_t microbatch, int rank);
NonFiniteError non_finite_gradient(const std::vector<std::string>& parameters, std::int64_t update, int rank);
NonFiniteError endless_overflow(const std::vector<std::string>& parameters, double loss_scale,
                                std::int64_t update, int rank);
/// Of a `skip` event, not an error.
std::string overflow_skipped(double loss_scale, double next_loss_scale);
DataError empty_source(std::int64_t epoch, std::int64_t batch);
DataError empty_evaluation_set(const std::string& name);
ConfigError unknown_length();
ConfigError null_model();
ConfigError no_evaluator();
ConfigError no_averaged_weights();
ConfigError no_best_weights();
ConfigError unknown_metric(const std::string& metric, const std::vector<std::pair<std::string, double>>& known);
/// `who` watches: "the monitor", "the schedule".
std::string problem_watch_without_evaluation(const std::string& who, const std::string& metric);
std::string problem_watched_set(const std::string& who, const std::string& metric,
                                const std::vector<std::string>& sets);
std::string problem_watched_raw(const std::string& who, const std::string& metric);
std::string problem_settings_text();
std::string problem_plateau_interval();
std::string problem_schedule_interval(std::int64_t every);
std::string warning_torch_schedule();
std::string problem_evaluate_raw();
std::string problem_without_evaluator(const std::string& setting);
std::string problem_interval_of_unknown_set(const std::string& name, const std::vector<std::string>& sets);
std::string problem_interval_of_set(const std::string& name, std::int64_t every);
std::string problem_without_ema(const std::string& setting);
std::string problem_objective_name(const std::string& tensor);
/// `taken`: another object has this name.
std::string problem_registered_name(const std::string& name, bool taken);
std::string problem_without_checkpoint_dir(const std::string& setting);
std::string problem_keep_schedule();
CheckpointError checkpoint_does_not_fit(const std::string& path, const std::vector<std::string>& problems);
CheckpointError checkpoint_directory_not_empty(const std::string& root, const std::string& found);
CheckpointError newer_checkpoint_exists(const std::string& root, const std::string& found);
std::string problem_missing_tensor(const std::string& what, const std::string& name);
std::string problem_left_over_tensor(const std::string& what, const std::string& name);
std::string problem_shape(const std::string& name, const std::vector<std::int64_t>& saved,
                          const std::vector<std::int64_t>& own);
std::string problem_type(const std::string& name, const std::string& saved, const std::string& own);
std::string problem_setting(const std::string& name, const std::string& saved, const std::string& own);
std::string problem_average(bool saved);
std::string warning_not_bit_exact(const std::string& name, const std::string& saved, const std::string& own);
std::string warning_options_restored(const std::string& group, const std::string& saved, const std::string& own);
std::string warning_schedule_restored(const std::string& saved, const std::string& given);
std::string warning_source_reread();
std::string warning_not_saved(const std::string& reason);
std::string problem_left_over_state(const std::string& object);
std::string warning_registered_state_absent(const std::string& object);
std::string warning_best_absent(std::int64_t step);
std::string warning_another_monitor(const std::string& before, const std::string& now);

}  // namespace lockstep::message
