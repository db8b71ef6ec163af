// Where the ranks of a run find each other, and ask each other when one is lost: a c10d store with the keys of this run.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/ranks/launch.hpp"

namespace lockstep {

/// "host:port" or "file:///path".
std::string meeting_point(const Launch& launch);

/// The first line of what c10d reports, without its stack trace.
std::string cause_of(const std::exception& error);

struct RollCall {
  std::vector<int> missing;  ///< ranks that left with a reason, else those that did not answer
  std::string reason;        ///< of the rank that left first; empty: none was given
};

class Meeting {
 public:
  using Clock = std::chrono::steady_clock;

  /// Waits until every rank is there. Errors: RankError `ranks-not-joined`, `ranks-differ`.
  Meeting(const Launch& launch, std::chrono::milliseconds timeout);
  /// Tells the others that this rank needs the store no more. The rank that serves it waits a second for them.
  ~Meeting();
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;

  [[nodiscard]] const Launch& launch() const { return launch_; }
  /// Left of the time to join.
  [[nodiscard]] std::chrono::milliseconds time_left() const;
  /// `group`: a name for the keys of one group of connections.
  [[nodiscard]] c10::intrusive_ptr<c10d::Store> store_of(const std::string& group) const;

  /// Leaves word for the roll call of `group`.
  void give_reason(const std::string& group, const std::string& reason) noexcept;
  /// Says that this rank is alive, to those that lost someone in `group`.
  void answer(const std::string& group) noexcept;
  /// Answers, and waits at most a second for the others to do so or to have left a reason.
  RollCall roll_call(const std::string& group);

  /// A RankError `ranks-not-joined`.
  [[noreturn]] void fail_to_join(const std::vector<int>& missing, const std::string& cause) const;

 private:
  void open();
  void meet();
  [[nodiscard]] std::vector<int> others_without(const std::string& key) const;

  Launch launch_;
  Clock::time_point opened_ = Clock::now();
  std::chrono::milliseconds timeout_;
  bool serves_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::vector<int> lost_;  ///< who is not waited for at the end
};

}  // namespace lockstep
