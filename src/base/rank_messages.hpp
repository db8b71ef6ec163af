// The errors of runs of several ranks, as messages.hpp has those of one. Only compiled parts throw them.
#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.hpp"

namespace lockstep::message {

/// `failures`: ranks and what they threw, in rank order.
RankError rank_failed(const std::vector<std::pair<int, std::string>>& failures);
/// `during`: what was under way; `missing`: who did not answer the roll call; `reason`: what a rank that left has
/// said, else what the connection reports.
RankError rank_lost(const std::string& during, const std::vector<int>& missing, const std::string& reason);
/// `missing`: ranks that did not come; empty: not known.
RankError ranks_not_joined(int expected, const std::vector<int>& missing, const std::string& meeting_point,
                           std::chrono::milliseconds waited, const std::string& cause);
/// `differences`: sentences, "rank 1: ...".
RankError ranks_differ(const std::vector<std::string>& differences);
RankError weights_differ(const std::string& parameter, int rank, std::int64_t update);
/// The reason of a stop that this rank was not asked for.
std::string another_rank_was_asked_to_stop(int rank);

}  // namespace lockstep::message
