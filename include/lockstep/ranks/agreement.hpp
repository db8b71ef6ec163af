// How a failure on one rank becomes a failure of the run: on every rank, at the same place.
#pragma once

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ranks/collectives.hpp"

namespace lockstep {

/// What an exception says.
[[nodiscard]] std::string text_of(const std::exception_ptr& failure);

/// Between two meetings each rank works on its own; what goes wrong there is told at the next one.
///
///     agreement.locally([&] { write(file); });       // may fail on one rank
///     agreement.meet({.phase = Phase::checkpoint});  // throws on all
///
/// With one rank, errors are thrown where they happen. Not thread-safe.
class Agreement {
 public:
  explicit Agreement(std::shared_ptr<Collectives> collectives) : collectives_(std::move(collectives)) {}

  [[nodiscard]] bool alone() const { return collectives_->world_size() == 1; }
  [[nodiscard]] Collectives& collectives() const { return *collectives_; }

  /// Calls `work`, which must not talk to other ranks. With several ranks an exception is kept for the next meeting,
  /// and until then no further work is done.
  template <class Work>
  void locally(Work&& work) {
    if (alone()) return work();
    if (failure_) return;
    try {
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  /// Calls `work`, which fails on all ranks or on none.
  template <class Work>
  auto together(Work&& work) {
    try {
      return work();
    } catch (...) {
      settled_ = true;
      throw;
    }
  }

  /// This rank cannot go on; the next meeting tells the others.
  void fail(std::exception_ptr failure) noexcept { failure_ = std::move(failure); }
  /// Throws what is kept for the next meeting, if there is something.
  void throw_kept() {
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

  /// The votes of all ranks, in rank order. Errors: what failed here since the last meeting, as it was thrown; RankError
  /// `rank-failed` where another rank failed; those of Collectives.
  std::vector<Vote> meet(Vote mine);
  /// Collectives::exchange(). Errors: those of Collectives.
  std::vector<std::string> exchange(const std::string& mine);

  /// The exception under way was thrown on every rank, or no other rank can be reached: nobody waits for this one.
  [[nodiscard]] bool settled() const { return settled_ || !collectives_->usable(); }
  /// A new call begins.
  void begin() noexcept { settled_ = false; }

 private:
  std::shared_ptr<Collectives> collectives_;
  std::exception_ptr failure_;
  bool settled_ = false;
};

}  // namespace lockstep
