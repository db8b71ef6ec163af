// The kinds of error the library throws.
//
// Every error carries a stable id (kebab-case, listed in docs/errors.md) besides its text. The text says what is
// wrong, where, and what to do about it; all texts are written in src/base/messages.cpp.
#pragma once

#include <stdexcept>
#include <string>

namespace lockstep {

/// Base of every error thrown by lockstep.
class Error : public std::runtime_error {
 public:
  Error(std::string id, const std::string& text)
      : std::runtime_error("[" + id + "] " + text), id_(std::move(id)) {}

  /// The stable id, for example `non-finite-loss`.
  [[nodiscard]] const std::string& id() const noexcept { return id_; }

 private:
  std::string id_;
};

/// A setting or a combination of settings that cannot work.
class ConfigError : public Error {
  using Error::Error;
};

/// A Step, or another callable of the user's, broke its contract at run time.
class StepError : public Error {
  using Error::Error;
};

/// A data set, loader or batch that cannot be used.
class DataError : public Error {
  using Error::Error;
};

/// A loss or gradient that is not finite. The model is as it was before the window.
class NonFiniteError : public Error {
  using Error::Error;
};

/// A checkpoint or weights file that is missing, damaged, foreign, or does not fit.
class CheckpointError : public Error {
  using Error::Error;
};

/// Ranks that do not belong together, or one that failed or was lost. Thrown on every rank that is left.
class RankError : public Error {
  using Error::Error;
};

/// The operating system refused to read or write a file.
class FileError : public Error {
  using Error::Error;
};

}  // namespace lockstep
