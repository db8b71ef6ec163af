#include "ranks/summing_vote.hpp"

#include <ATen/ops/empty.h>

#include <cstring>
#include <type_traits>

namespace lockstep {
namespace {

static_assert(std::is_trivially_copyable_v<Vote>);

/// Where numbers of any type may begin.
constexpr std::int64_t alignment = 64;
constexpr std::int64_t padded(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }
constexpr std::int64_t numbers_begin = padded(sizeof(Vote));

}  // namespace

SummingVote::SummingVote(int rank, int ranks, const at::Tensor& numbers)
    : rank_(rank),
      like_(numbers),
      messages_(at::empty({ranks, numbers_begin + padded(static_cast<std::int64_t>(numbers.nbytes()))}, at::kByte)) {}

bool SummingVote::fits(const at::Tensor& numbers) const {
  return numbers.numel() == like_.numel() && numbers.scalar_type() == like_.scalar_type();
}

void SummingVote::expect(c10d::ProcessGroupGloo& gloo) {
  for (int other = 0; other < messages_.size(0); ++other) {
    if (other == rank_) continue;
    std::vector<at::Tensor> message{messages_[other]};
    works_.push_back(gloo.recv(message, other, tag));
  }
}

std::vector<Vote> SummingVote::vote(c10d::ProcessGroupGloo& gloo, const Vote& mine, at::Tensor numbers) {
  std::vector<at::Tensor> message{messages_[rank_]};
  std::memcpy(message.front().mutable_data_ptr(), &mine, sizeof mine);
  mine.failed ? numbers_of(rank_).zero_() : numbers_of(rank_).copy_(numbers);
  for (int other = 0; other < messages_.size(0); ++other) {
    if (other != rank_) works_.push_back(gloo.send(message, other, tag));
  }
  for (const auto& work : works_) work->wait();
  works_.clear();

  std::vector<Vote> votes(static_cast<std::size_t>(messages_.size(0)));
  for (int rank = 0; rank < messages_.size(0); ++rank) {
    std::memcpy(&votes[static_cast<std::size_t>(rank)], messages_[rank].const_data_ptr(), sizeof(Vote));
    rank == 0 ? numbers.copy_(numbers_of(rank)) : numbers.add_(numbers_of(rank));
  }
  return votes;
}

at::Tensor SummingVote::numbers_of(int rank) const {
  return messages_[rank]
      .narrow(0, numbers_begin, static_cast<std::int64_t>(like_.nbytes()))
      .view(like_.scalar_type());
}

}  // namespace lockstep
