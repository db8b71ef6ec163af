#include "base/file_messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::message {

FileError checkpoint_lock_lost(const std::string& root) {
  return {"checkpoint-lock-lost",
          fmt::format("the lock on {} is no longer this run's: its file .lock was removed, replaced or touched, so "
                      "that another program may save there too. Nothing more is written. End the other program, and do not remove "
                      ".lock; where machines share a folder, its file system must share locks (flock).",
                      root)};
}

ConfigError no_place_for_metadata(const std::string& path) {
  return {"no-place-for-metadata",
          fmt::format("{} would hold tensors alone, since a .pt file has no place for metadata. Leave the metadata out, or "
                      "write a .safetensors file.",
                      path)};
}

ConfigError no_averages_in(const std::string& path) {
  return {"no-averaged-weights",
          fmt::format("{} holds no averaged weights, since its run kept none (ema_decay). Ask for the raw ones.", path)};
}

CheckpointError weights_not_alike(const std::string& first, const std::string& other,
                                  const std::vector<std::string>& problems) {
  return {"weights-not-alike",
          fmt::format("the weights of {} and {} have no mean, because their tensors differ:\n  - {}\nAverage checkpoints "
                      "of one model.",
                      first, other, fmt::join(problems, "\n  - "))};
}

std::string problem_only_in(const std::string& tensor, const std::string& path) {
  return fmt::format("\"{}\" is in {} alone.", tensor, path);
}

std::string problem_unlike(const std::string& tensor, const std::string& first, const std::string& other) {
  return fmt::format("\"{}\" is {} and {}.", tensor, first, other);
}

}  // namespace lockstep::message
