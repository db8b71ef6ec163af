// A vote that carries a small sum: one message to each other rank instead of a vote and an all-reduce.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <vector>

#include "lockstep/ranks/collectives.hpp"

namespace lockstep {

/// The messages of a vote together with a tensor of `numbers` elements of one type.
///
/// A receive that is posted before its message is sent saves a round trip, so expect() comes as early as it can.
class SummingVote {
 public:
  /// Of its messages, between two ranks.
  static constexpr int tag = 1;

  SummingVote(int rank, int ranks, const at::Tensor& numbers);

  /// Whether it is made for tensors like this one.
  [[nodiscard]] bool fits(const at::Tensor& numbers) const;
  /// Posts the receives for the next vote.
  void expect(c10d::ProcessGroupGloo& gloo);
  /// Sends this rank's vote and numbers, zeros if it failed, and waits for those of all; sums them in rank order into
  /// `numbers`.
  [[nodiscard]] std::vector<Vote> vote(c10d::ProcessGroupGloo& gloo, const Vote& mine, at::Tensor numbers);

 private:
  [[nodiscard]] at::Tensor numbers_of(int rank) const;

  int rank_;
  at::Tensor like_;
  at::Tensor messages_;  // a row for each rank: its vote, and from numbers_begin_ on its numbers
  // Of this vote. They stay when it fails, until the connections are closed: before, a message that came in part
  // could be waited for.
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace lockstep
