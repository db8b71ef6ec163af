// Where the ranks of a run find each other, and ask for each other when one is lost: a c10d store with keys
// of their own.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "lockstep/ranks/launch.hpp"

namespace lockstep {

/// What c10d reports, in one line.
std::string cause_of(const std::exception& error);

struct RollCall {
  std::vector<int> missing;  ///< the rank that left with a reason, else those that did not answer
  std::string reason;        ///< empty: none was given
};

class Meeting {
 public:
  /// Waits until every rank is there. Errors: RankError `ranks-not-joined`, `rank-taken`, `ranks-differ`.
  Meeting(const Launch& launch, std::chrono::milliseconds timeout);
  /// Tells the others that this rank needs the store no more; the rank that serves it waits up to a second
  /// for them.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  [[nodiscard]] const Launch& launch() const { return launch_; }
  /// Of the time to join.
  [[nodiscard]] std::chrono::milliseconds time_left() const;
  /// For the keys of one group of connections.
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> store_of(const std::string& group) const;

  /// Tells those that miss this rank in `group` why it has left.
  void give_reason(const std::string& group, const std::string& reason);
  /// Answers, and waits at most a second until all others have, or one has left a reason.
  [[nodiscard]] RollCall roll_call(const std::string& group);

  /// A RankError `ranks-not-joined`.
  [[noreturn]] void fail_to_join(const std::vector<int>& missing, const std::string& cause) const;

 private:
  using Clock = std::chrono::steady_clock;

  void open();
  void meet();
  void leave();
  /// Of the ranks besides this one.
  [[nodiscard]] std::vector<int> without(const std::string& key) const;
  /// Rank 0 if it is the one that serves the store to this rank.
  [[nodiscard]] std::vector<int> server() const;

  Launch launch_;
  std::chrono::milliseconds timeout_;
  Clock::time_point opened_ = Clock::now();
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<int> lost_;  ///< not waited for at the end
};

}  // namespace lockstep
