// The text of every error, each with its remedy.
#include "lockstep/base/messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <system_error>

namespace lockstep::message {

// ---- config ----
ConfigError invalid_settings(const std::vector<std::string>& problems) {
  return {"invalid-settings", fmt::format("the settings cannot work:\n  - {}", fmt::join(problems, "\n  - "))};
}

ConfigError invalid_interval(const std::string& text) {
  return {"invalid-interval",
          fmt::format("\"{}\" is not an interval: write a number from 1 up and its unit, as in \"50 steps\" or "
                      "\"1 epoch\".",
                      text)};
}

ConfigError invalid_json_field(const std::string& pointer, const std::string& problem) {
  return {"invalid-json-field", fmt::format("JSON field \"{}\" {}.", pointer, problem)};
}

ConfigError signals_already_caught() {
  return {"signals-already-caught",
          "catch_signals() was called while another of its scopes exists: a process has one set of signal handlers, "
          "so let that scope end first, or hand the same StopRequest to every train() call."};
}

// ---- data ----

// ---- optim ----

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
              "{} does not end in .safetensors, the one format weights are kept in. Rename it; in Python, "
              "safetensors.torch.save_file(module.state_dict(), path) writes such a file.",
              path)};
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

// ---- loop ----

}  // namespace lockstep::message
