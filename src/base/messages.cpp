// The text of every error, each with its remedy.
#include "lockstep/base/messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace lockstep::message {

// ---- config ----
ConfigError invalid_settings(const std::vector<std::string>& problems) {
  return {"invalid-settings",
          fmt::format("the settings cannot work:\n  - {}", fmt::join(problems, "\n  - "))};
}

ConfigError invalid_interval(const std::string& text) {
  return {
      "invalid-interval",
      fmt::format("\"{}\" is not an interval: write a number from 1 up and its unit, as in \"50 steps\", "
                  "\"1 epoch\" or \"30 seconds\", or \"failure every 86400 seconds\".",
                  text)};
}

ConfigError invalid_json_field(const std::string& pointer, const std::string& problem) {
  return {"invalid-json-field", fmt::format("JSON field \"{}\" {}.", pointer, problem)};
}

ConfigError invalid_json_text(const std::string& source, const std::string& problem) {
  return {"invalid-json-text", fmt::format("{} {}. Correct it there; JSON has double quotes around keys and strings, "
                                           "no comments, and no comma before a closing bracket.",
                                           source, problem)};
}

std::string problem_value(const std::string& pointer, const std::string& source, const std::string& problem) {
  return fmt::format("\"{}\"{} {}.", pointer, source.empty() ? "" : fmt::format(" (from {})", source), problem);
}

std::string problem_device(const std::string& text) {
  return fmt::format("is \"{}\", give \"cpu\", \"cuda\", or one of several as in \"cuda:1\"", text);
}

ConfigError signals_already_caught() {
  return {"signals-already-caught",
          "catch_signals() was called while another of its scopes exists: a process has one set of signal "
          "handlers, "
          "so let that scope end first, or hand the same StopRequest to every train() call."};
}

// ---- data ----
DataError empty_dataset() {
  return {
      "empty-dataset",
      "the data set given to a DataLoader has no samples. Check the path or the filter it was made with."};
}

DataError dataset_without_size() {
  return {"dataset-without-size",
          "size() of the data set given to a DataLoader returned nothing. A data set needs a known size; "
          "hand the "
          "Trainer a range of batches instead if there is none."};
}

DataError rows_differ(std::int64_t data_rows, std::int64_t target_rows) {
  const auto rows = [](std::int64_t count) {
    return count < 0 ? std::string("none") : std::to_string(count);
  };
  return {"rows-differ",
          fmt::format(
              "a TensorDataset holds one sample a row, but data has {} rows and target {}. Give it tensors "
              "with the same first dimension.",
              rows(data_rows), rows(target_rows))};
}

DataError uneven_samples(const std::string& first, const std::string& other) {
  return {
      "uneven-samples",
      fmt::format(
          "samples of one batch differ: the first is {}, another is {}. Pad or crop them in the data set, "
          "or give the DataLoader a collate functor.",
          first, other)};
}

DataError position_past_end(std::int64_t first_batch, std::int64_t batches) {
  return {"position-past-end",
          fmt::format(
              "batch {} of an epoch was asked for as the first, but the epoch has {} batches. Use the data "
              "with which the position was recorded.",
              first_batch, batches)};
}

// ---- optim ----
std::string problem_weight_decay(double value) {
  return fmt::format("weight_decay is {}: give a finite number from 0 up.", value);
}

std::string problem_ema_decay(double value) {
  return fmt::format("ema_decay is {}: give a number from 0 up and below 1, for example 0.999.", value);
}

std::string problem_lr(double value) {
  return fmt::format("the learning rate is {}: give a finite number from 0 up.", value);
}

std::string problem_accumulation(std::int64_t value) {
  return fmt::format(
      "gradient_accumulation_steps is {}: give the number of microbatches behind one update, at least 1.",
      value);
}

std::string problem_loss_scaler(const std::string& precision) {
  return fmt::format(
      "loss_scaler is set but the precision is {}, which scales no loss, so it would be ignored: set "
      "fp16 or fp16_mixed, or leave it out.",
      precision);
}

ConfigError no_trainable_parameter() {
  return {"no-trainable-parameter",
          "there is nothing to train: the model has no parameter with requires_grad, or the optimizer holds "
          "none. "
          "Register the model's parameters and layers, unfreeze some, and hand them to the optimizer."};
}

ConfigError foreign_parameter(std::size_t group, const std::vector<std::int64_t>& shape) {
  return {"foreign-parameter",
          fmt::format(
              "group {} of the optimizer holds a parameter of shape [{}] that is not the model's. Build the "
              "optimizer from the parameters of the model that the Trainer is given, after any of them was "
              "replaced.",
              group, fmt::join(shape, ", "))};
}

ConfigError duplicate_parameter(const std::string& name, std::size_t first_group, std::size_t second_group) {
  return {"duplicate-parameter",
          fmt::format(
              "the optimizer holds parameter {} twice (groups {} and {}), and would step it twice an update. "
              "Module::parameters() lists a shared parameter once for each of its names: use "
              "weight_decay_groups() or trainable_parameters(), which list it once.",
              name, first_group, second_group)};
}

ConfigError unknown_group(const std::string& group, const std::vector<std::string>& known) {
  return {"unknown-group", fmt::format("the optimizer has no parameter group named \"{}\"; it has {}.", group,
                                       fmt::join(known, ", "))};
}

ConfigError parameter_not_flat(const std::string& parameter, const std::string& why) {
  return {"parameter-not-flat",
          fmt::format("parameter {} cannot live in a flat buffer: {}. Tie parameters by registering one tensor "
                      "under both names; where that cannot be, set flat_parameters = false in TrainerOptions, "
                      "which trains the same and slower.",
                      parameter, why)};
}

StepError parameter_moved(const std::string& parameter, const std::string& before, const std::string& now) {
  return {"parameter-moved",
          fmt::format("parameter {} was {} when the Trainer was made and has become {}. Its former values are "
                      "back in place. Do not convert, move or resize a module that a Trainer holds: destroy the "
                      "Trainer first, or choose type and device in AcceleratorOptions.",
                      parameter, before, now)};
}

StepError gradient_replaced(const std::string& parameter) {
  return {"gradient-replaced",
          fmt::format("the gradient of {} was reset or replaced inside a window, so that what earlier "
                      "microbatches added to it is lost. Leave zero_grad() to the Trainer, which clears "
                      "gradients once a window.",
                      parameter)};
}

std::string problem_optimizer_option(const std::string& group, const std::string& option, double value,
                                     const std::string& allowed) {
  return fmt::format("group {} of the optimizer has {} = {}: give {}.", group, option, value, allowed);
}

std::string problem_two_rates(const std::string& group) {
  return fmt::format("group {} has a learning rate of its own twice: in ParameterGroup::lr and in its options. "
                     "Leave one out.",
                     group);
}

ConfigError device_not_available(const std::string& device) {
  return {"device-not-available",
          fmt::format(
              "device {} is not available to this build of LibTorch on this machine. Leave .device unset to "
              "take the best one there is, or use torch::kCPU.",
              device)};
}

CheckpointError optimizer_state_not_saved(const std::string& field, const std::string& type) {
  return {"optimizer-state-not-saved",
          fmt::format(
              "the optimizer's field {} is a {}, which a checkpoint cannot hold: tensors and lists of them, "
              "numbers, flags, texts and tuples of them can be saved. Train without checkpoint_dir, or use another optimizer.",
              field, type)};
}

std::string problem_optimizer_kind(const std::string& saved, const std::string& own) {
  return fmt::format("the optimizer was {} and is {} now.", saved, own);
}

std::string problem_group_count(std::size_t saved, std::size_t own) {
  return fmt::format("the optimizer had {} parameter groups and has {} now.", saved, own);
}

std::string problem_group_parameters(std::size_t group, const std::string& name) {
  return fmt::format("the optimizer's group {} ({}) held other parameters, or held them in another order.",
                     group, name);
}

// ---- files ----
namespace {

std::string file_problem(int error) { return std::generic_category().message(error); }

std::string file_advice(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "Free some space, or choose another directory.";
    case EROFS:
    case EACCES:
    case EPERM:
      return "Choose a directory that this user may write to, or correct its permissions.";
    case EFBIG:
      return "Raise the limit on file sizes (ulimit -f).";
    case EMFILE:
    case ENFILE:
      return "Raise the limit on open files (ulimit -n).";
    case EEXIST:
      return "Move what is there away, or choose another name.";
    case ENOENT:
    case ENOTDIR:
      return "Check the spelling of the path.";
    default:
      return "Check the path and the disk.";
  }
}

}  // namespace

FileError cannot_read_file(const std::string& path, int error) {
  const std::string advice = error == EACCES ? "Correct its permissions." : file_advice(error);
  return {"cannot-read-file", fmt::format("cannot read {}: {}. {}", path, file_problem(error), advice)};
}

FileError cannot_read_file(const std::string& path, const std::string& problem) {
  return {"cannot-read-file", fmt::format("cannot read {}: it {}. Check the path.", path, problem)};
}

FileError cannot_write_file(const std::string& path, int error) {
  return {"cannot-write-file",
          fmt::format("cannot write {}: {}. {}", path, file_problem(error), file_advice(error))};
}

FileError cannot_create_directory(const std::string& path, int error) {
  return {"cannot-create-directory", fmt::format("cannot create the directory {}: {}. {}", path,
                                                 file_problem(error), file_advice(error))};
}

FileError checkpoint_directory_in_use(const std::string& path) {
  return {"checkpoint-directory-in-use",
          fmt::format("another run is saving its checkpoints to {}. Wait for it to end, or give this run a "
                      "checkpoint_dir of its own.",
                      path)};
}

ConfigError cannot_store_tensor(const std::string& name, const std::string& problem) {
  return {"cannot-store-tensor", fmt::format("tensor \"{}\" cannot be stored: {}.", name, problem)};
}

CheckpointError damaged_safetensors(const std::string& path, const std::string& problem) {
  return {"damaged-safetensors",
          fmt::format("{} is no valid safetensors file: {}. Take another copy, or write it again.", path,
                      problem)};
}

ConfigError unknown_weights_format(const std::string& path) {
  return {"unknown-weights-format",
          fmt::format(
              "{} does not end in .safetensors, the format weights are kept in; .pt files are only written, for "
              "Python. Name a .safetensors file; in Python, safetensors.torch.save_file(module.state_dict(), path) "
              "writes one.",
              path)};
}

CheckpointError weights_do_not_fit(const std::string& path, const std::vector<std::string>& problems,
                                   const std::vector<std::string>& hints) {
  std::string text = fmt::format("the weights in {} are not those of this module; nothing was changed:\n  - {}", path,
                                 fmt::join(problems, "\n  - "));
  for (const auto& hint : hints) text += "\n" + hint;
  text += "\nTo load only a part, name what is to stay in .skip, or set .strict = false.";
  return {"weights-do-not-fit", text};
}

std::string problem_missing_weight(const std::string& name) {
  return fmt::format("{} of the module is not in the file", name);
}

std::string problem_left_over_weight(const std::string& name) {
  return fmt::format("{} of the file is not in the module", name);
}

std::string problem_nothing_fits() { return "not one tensor of the file has a place in the module"; }

std::string problem_renamed_twice(const std::string& first, const std::string& second, const std::string& name) {
  return fmt::format("{} and {} of the file would both be {}: correct .rename", first, second, name);
}

std::string problem_unused_rename(const std::string& beginning) {
  return fmt::format("no name in the file begins with \"{}\": correct .rename, or leave it out", beginning);
}

std::string problem_unused_skip(const std::string& beginning) {
  return fmt::format("no name begins with \"{}\": correct .skip, or leave it out", beginning);
}

std::string hint_rename(const std::string& from, const std::string& to) {
  return fmt::format("All names fit with .rename = {{{{\"{}\", \"{}\"}}}}.", from, to);
}

CheckpointError checkpoint_not_found(const std::string& path, const std::string& problem,
                                     const std::vector<std::string>& present) {
  return {"checkpoint-not-found",
          fmt::format("no checkpoint at {}: {}. {}", path, problem,
                      present.empty() ? "There is none beside it either; check the path."
                                      : fmt::format("Present are: {}.", fmt::join(present, ", ")))};
}

CheckpointError damaged_checkpoint(const std::string& file, const std::string& problem) {
  return {"damaged-checkpoint",
          fmt::format(
              "{} is damaged: {}. Resume from another checkpoint, or from `latest`, which takes the newest "
              "valid one.",
              file, problem)};
}

CheckpointError checkpoint_format_version(const std::string& file, std::int64_t found, std::int64_t known) {
  return {
      "checkpoint-format-version",
      fmt::format("{} has format version {}, this library reads version {}. Use the version of lockstep that "
                  "wrote it.",
                  file, found, known)};
}

CheckpointError no_valid_checkpoint(const std::string& root, const std::vector<std::string>& passed_over) {
  return {"no-valid-checkpoint",
          fmt::format(
              "none of the checkpoints in {} can be used:\n  - {}\nRestore one from a copy, or start afresh "
              "in another directory.",
              root, fmt::join(passed_over, "\n  - "))};
}

std::string checkpoint_passed_over(const std::string& directory, const std::string& reason) {
  return fmt::format("the checkpoint {} is passed over: {}", directory, reason);
}

// ---- watch ----
FileError run_directory_in_use(const std::string& path) {
  return {"run-directory-in-use",
          fmt::format(
              "another RunLogger is writing to {}. Wait for its run to end, or give this run a folder of its "
              "own.",
              path)};
}

std::string sink_failed(const std::string& sink, const std::string& reason) {
  return fmt::format(
      "the run's log cannot be written to {}: {} The training goes on. Later events are tried all the same, "
      "and how many were lost is said at the end.",
      sink, reason);
}

std::string events_were_lost(const std::string& sink, std::int64_t count) {
  return fmt::format("{} of the run's log lacks {} event{} that could not be written.", sink, count,
                     count == 1 ? "" : "s");
}

// ---- loop ----
StepError missing_num_samples() {
  return {"missing-num-samples",
          "the Step returned a StepOutput without num_samples. Set it to the number of samples (or tokens) "
          "that the "
          "loss is the mean of, for example .num_samples = batch.target.size(0)."};
}

StepError negative_num_samples(std::int64_t value) {
  return {
      "negative-num-samples",
      fmt::format("the Step returned num_samples = {}. It counts what the loss is the mean of: 0 or more.",
                  value)};
}

StepError num_samples_not_integer(const std::string& type) {
  return {"invalid-num-samples",
          fmt::format(
              "the Step returned num_samples as a tensor of type {}. It counts what the loss is the mean of: "
              "give a tensor of an integer type, such as a sum() over a mask.",
              type)};
}

StepError num_samples_not_scalar(std::int64_t elements) {
  return {"invalid-num-samples",
          fmt::format(
              "the Step returned num_samples as a tensor of {} elements. It must be one number: call sum().",
              elements)};
}

StepError undefined_loss() {
  return {"undefined-loss",
          "the Step returned an undefined loss for a batch with samples. Set .loss to the mean loss of the "
          "batch."};
}

StepError loss_not_scalar(const std::vector<std::int64_t>& shape) {
  return {"loss-not-scalar",
          fmt::format(
              "the Step returned a loss of shape [{}]. It must be one number: take the mean over the samples "
              "counted in num_samples.",
              fmt::join(shape, ", "))};
}

StepError loss_not_floating(const std::string& type) {
  return {"loss-not-floating",
          fmt::format("the Step returned a loss of type {}. It must be a floating-point number.", type)};
}

StepError loss_without_gradient() {
  return {"loss-without-gradient",
          "the Step returned a loss that does not depend on a trainable parameter. Compute it from the "
          "model's output, "
          "without detach(), item() or a no-grad guard in between, and check that the parameters are not "
          "frozen."};
}

StepError reserved_metric_name(const std::string& name) {
  return {
      "invalid-metric",
      name.empty()
          ? "the Step returned a metric without a name. Give it one."
          : "the Step returned a metric named \"loss\", which is the name of the loss itself. Rename it."};
}

StepError negative_metric_count(const std::string& name, std::int64_t count) {
  return {"invalid-metric",
          fmt::format(
              "the Step returned metric \"{}\" with count {}. It is what the sum is divided by: 0 or more.",
              name, count)};
}

StepError metric_not_scalar(const std::string& name, std::int64_t elements) {
  return {"invalid-metric",
          fmt::format(
              "the Step returned metric \"{}\" with a sum of {} elements. It must be one number: call sum().",
              name, elements)};
}

StepError metric_count_not_scalar(const std::string& name, std::int64_t elements) {
  return {
      "invalid-metric",
      fmt::format(
          "the Step returned metric \"{}\" with a count of {} elements. It must be one number: call sum().",
          name, elements)};
}

StepError metric_count_not_integer(const std::string& name, const std::string& type) {
  return {
      "invalid-metric",
      fmt::format(
          "the Step returned metric \"{}\" with a count of type {}. It counts what the sum is divided by: "
          "give an integer.",
          name, type)};
}

NonFiniteError non_finite_loss(double value, std::int64_t update, std::int64_t microbatch, int rank) {
  return {
      "non-finite-loss",
      fmt::format(
          "the loss is {} at update {}, microbatch {} of its window, rank {}. The model is as it was before "
          "this window. Look for a too large learning rate, a division by zero or a logarithm of zero in the "
          "Step, or bad values in this batch.",
          value, update, microbatch, rank)};
}

namespace {

std::string first_names(const std::vector<std::string>& names) {
  if (names.empty()) return "a parameter (a run without late_finite_check names it)";
  constexpr std::size_t shown = 5;
  const auto first = std::vector<std::string>(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(shown, names.size())));
  const auto more = names.size() > shown ? fmt::format(" and {} more", names.size() - shown) : std::string();
  return fmt::format("{}{}", fmt::join(first, ", "), more);
}

}  // namespace

NonFiniteError non_finite_gradient(const std::vector<std::string>& parameters, std::int64_t update,
                                   int rank) {
  return {
      "non-finite-gradient",
      fmt::format(
          "the gradient of {} is not finite at update {}, rank {}. The model is as it was before this "
          "window. Look for an operation whose derivative is infinite where it is evaluated (sqrt or a norm "
          "at 0, say), or for a too large learning rate.",
          first_names(parameters), update, rank)};
}

NonFiniteError endless_overflow(const std::vector<std::string>& parameters, double loss_scale,
                                std::int64_t update, int rank) {
  return {
      "endless-overflow",
      fmt::format(
          "the gradient of {} overflows at update {}, rank {}, though the loss scale has come down to {}, "
          "its smallest. The model is as it was before this window. No scale helps a derivative that is "
          "infinite where it is evaluated (sqrt or a norm at 0, say): bf16_mixed or fp32 shows whether that "
          "is so. Else lower the learning rate.",
          first_names(parameters), update, rank, loss_scale)};
}

std::string overflow_skipped(double loss_scale, double next_loss_scale) {
  return fmt::format("the gradients overflowed at loss scale {}, which is {} from now on", loss_scale,
                     next_loss_scale);
}

DataError empty_source(std::int64_t epoch, std::int64_t batch) {
  return {"empty-source",
          batch == 0
              ? fmt::format(
                    "the training source yielded no batch in epoch {}. A range that can be read only once "
                    "cannot serve several epochs: hand over one whose begin() starts anew, or set "
                    "max_steps to what it holds.",
                    epoch)
              : fmt::format(
                    "the training source ended before batch {} of epoch {}, where the run is to go on. Its "
                    "data is not what the checkpoint was made with.",
                    batch, epoch)};
}

DataError empty_evaluation_set(const std::string& name) {
  return {
      "empty-evaluation-set",
      fmt::format("the evaluation set \"{}\" yielded no batch. Check the data behind it, or leave it out.",
                  name)};
}

ConfigError unknown_length() {
  return {
      "unknown-length",
      "the training source does not say how many batches an epoch has. Set TrainConfig::max_steps, and give "
      "the schedule its steps as numbers."};
}

ConfigError null_model() {
  return {"null-model", "the Trainer was given a null pointer as its model. Build the model first."};
}

ConfigError no_evaluator() {
  return {"no-evaluator", "evaluate() was called on a Trainer without an Evaluator. Pass one as .evaluator."};
}

ConfigError no_averaged_weights() {
  return {
      "no-averaged-weights",
      "averaged weights were asked of a Trainer that keeps none. Pass .ema_decay, or ask for Weights::raw."};
}

ConfigError no_best_weights() {
  return {"no-best-weights",
          "there are no best weights yet. Set TrainConfig::monitor and train until an evaluation was judged."};
}

ConfigError unknown_metric(const std::string& metric, const std::vector<std::pair<std::string, double>>& known) {
  std::vector<std::string> names;
  for (const auto& [name, value] : known) names.push_back(name);
  return {"unknown-metric", fmt::format("\"{}\" is watched, but the evaluation reports {}: use one of these names.",
                                        metric, fmt::join(names, ", "))};
}

std::string problem_watch_without_evaluation(const std::string& who, const std::string& metric) {
  return fmt::format(
      "{} watches \"{}\", but nothing is evaluated: pass an Evaluator to the Trainer and set evaluate_every, or leave it "
      "out.",
      who, metric);
}

std::string problem_watched_set(const std::string& who, const std::string& metric,
                                const std::vector<std::string>& sets) {
  return fmt::format("{} watches \"{}\", but the evaluation sets are {}: name a metric as set/metric.", who, metric,
                     fmt::join(sets, ", "));
}

std::string problem_watched_raw(const std::string& who, const std::string& metric) {
  return fmt::format(
      "{} watches \"{}\", but raw weights are not evaluated on their own: set evaluate_raw, or leave \"raw/\" out.", who,
      metric);
}

std::string problem_settings_text() {
  return "TrainOptions::settings is no JSON: give the text of Settings::resolved(), or leave it out.";
}

std::string problem_plateau_interval() {
  return "a Plateau follows evaluations, so an interval would be ignored: leave it out and choose evaluate_every and "
         "patience.";
}

std::string problem_schedule_interval(std::int64_t every) {
  return fmt::format("the schedule's interval is every {}: give at least 1.", every);
}

std::string warning_torch_schedule() {
  return "the state of Torch's own schedules is private: after a resume the rates go on as saved, and the schedule begins "
         "anew. Use a lockstep::Schedule to resume exactly";
}

std::string problem_evaluate_raw() {
  return "evaluate_raw is set, but without ema_decay it is the raw weights that are evaluated anyway: set ema_decay, or "
         "leave evaluate_raw out.";
}

std::string problem_without_evaluator(const std::string& setting) {
  return fmt::format(
      "{} is set, but there is nothing to evaluate with: pass an Evaluator to the Trainer, or leave it out.", setting);
}

std::string problem_interval_of_unknown_set(const std::string& name, const std::vector<std::string>& sets) {
  return fmt::format("EvaluatorOptions::every names the set \"{}\", but the sets are {}: use one of these names.", name,
                     fmt::join(sets, ", "));
}

std::string problem_interval_of_set(const std::string& name, std::int64_t every) {
  return fmt::format(
      "EvaluatorOptions::every evaluates \"{}\" every {}: give at least 1, or leave the set out to follow "
      "TrainConfig::evaluate_every.",
      name, every);
}

std::string problem_without_ema(const std::string& setting) {
  return fmt::format("{} is set but would be ignored, as nothing is averaged: set ema_decay, or leave it out.",
                     setting);
}

std::string problem_objective_name(const std::string& tensor) {
  return fmt::format(
      "the model's \"{}\" has a name that belongs to the objective in checkpoints: rename that part of the model.",
      tensor);
}

std::string problem_registered_name(const std::string& name, bool taken) {
  return fmt::format("the state \"{}\" cannot be registered: {}.", name,
                     taken ? "another object has this name, choose a different one"
                           : "give it a name, and one without a slash");
}

std::string problem_without_checkpoint_dir(const std::string& setting) {
  return fmt::format(
      "{} is set but checkpoint_dir is not, so it would be ignored: set checkpoint_dir or leave it out.",
      setting);
}

std::string problem_keep_schedule() {
  return "keep_schedule is set without a schedule to keep or without resume_from: call set_scheduler() and "
         "resume, or "
         "leave it out.";
}

CheckpointError checkpoint_does_not_fit(const std::string& path, const std::vector<std::string>& problems) {
  return {
      "checkpoint-does-not-fit",
      fmt::format("checkpoint {} is not of this run; nothing was changed:\n  - {}\nTo resume, set the run up "
                  "as it was. For a new run choose another checkpoint_dir; to start it from these weights, "
                  "call load_weights(model, \"{}\") first.",
                  path, fmt::join(problems, "\n  - "), path)};
}

CheckpointError checkpoint_directory_not_empty(const std::string& root, const std::string& found) {
  return {
      "checkpoint-directory-not-empty",
      fmt::format(
          "{} holds checkpoints of another run ({}). Pass resume_from = latest to go on with that run, or "
          "choose another folder, or remove this one.",
          root, found)};
}

CheckpointError newer_checkpoint_exists(const std::string& root, const std::string& found) {
  return {
      "newer-checkpoint-exists",
      fmt::format(
          "the run is to go on from an earlier state than {} in {}, which would mix two histories. Choose "
          "another checkpoint_dir, or remove the newer checkpoints.",
          found, root)};
}

std::string problem_missing_tensor(const std::string& what, const std::string& name) {
  return fmt::format("{} has no tensor {}, which the model has.", what, name);
}

std::string problem_left_over_tensor(const std::string& what, const std::string& name) {
  return fmt::format("{} has a tensor {}, which the model has not.", what, name);
}

std::string problem_shape(const std::string& name, const std::vector<std::int64_t>& saved,
                          const std::vector<std::int64_t>& own) {
  return fmt::format("{} had shape [{}] and has [{}] now.", name, fmt::join(saved, ", "),
                     fmt::join(own, ", "));
}

std::string problem_type(const std::string& name, const std::string& saved, const std::string& own) {
  return fmt::format("{} was {} and is {} now.", name, saved, own);
}

std::string problem_setting(const std::string& name, const std::string& saved, const std::string& own) {
  return fmt::format("{} was {} and is {} now.", name, saved, own);
}

std::string problem_average(bool saved) {
  return saved ? "the checkpoint holds averaged weights and this Trainer keeps none: pass .ema_decay."
               : "this Trainer keeps averaged weights and the checkpoint has none: leave .ema_decay out.";
}

std::string warning_not_bit_exact(const std::string& name, const std::string& saved, const std::string& own) {
  return fmt::format(
      "{} was {} when the checkpoint was written and is {} now: the run goes on, but its last bits may "
      "differ from those of an uninterrupted one.",
      name, saved, own);
}

std::string warning_options_restored(const std::string& group, const std::string& saved,
                                     const std::string& own) {
  return fmt::format(
      "the options of parameter group {} are those of the checkpoint, {}, not the ones given, {}. Call "
      "set_lr() after a first train() call to change a rate.",
      group, saved, own);
}

std::string warning_schedule_restored(const std::string& saved, const std::string& given) {
  return fmt::format(
      "the schedule of the checkpoint, {}, is used, not the one given, {}. Set keep_schedule to use the "
      "given one.",
      saved, given);
}

std::string warning_not_saved(const std::string& reason) {
  return "the state before the window that failed could not be saved: " + reason;
}

std::string problem_left_over_state(const std::string& object) {
  return fmt::format(
      "the checkpoint has the state of \"{}\", which is not registered now: call register_state() before train().",
      object);
}

std::string warning_registered_state_absent(const std::string& object) {
  return fmt::format("the checkpoint has no state of \"{}\", which stays as it is", object);
}

std::string warning_best_absent(std::int64_t step) {
  return fmt::format(
      "the best weights, of update {}, are not beside the checkpoint: there are none until an evaluation is better",
      step);
}

std::string warning_another_monitor(const std::string& before, const std::string& now) {
  return fmt::format("the best value so far is one of {}; with {} as the monitor, best and patience begin anew", before,
                     now);
}

std::string warning_source_reread() {
  return "the training source cannot seek: the batches before the checkpoint's position are read and "
         "dropped, and the run "
         "goes on exactly only if the source yields the same batches again.";
}

}  // namespace lockstep::message
