// The errors of runs of several ranks, as messages.hpp has those of one. Only compiled parts throw them.
#pragma once

#include <chrono>
#include <cstdint>
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
/// A sentence of ranks_differ().
std::string difference_of_version(int rank, const std::string& theirs, const std::string& ours);
RankError rank_taken(int rank, const std::string& meeting_point);
/// `calls`: see call_of_rank(), in rank order.
RankError ranks_out_of_order(const std::vector<std::string>& calls);
std::string call_of_rank(int rank, std::int64_t number, const std::string& operation);
/// For ranks_differ(): `place` is a JSON pointer.
std::string difference_between_ranks(int rank, const std::string& place, const std::string& value,
                                     const std::string& on_main);
/// `shapes`: type and sizes, in rank order.
RankError tensors_differ(const std::vector<std::string>& shapes);
RankError weights_differ(const std::string& parameter, int rank, std::int64_t update);
/// `problems`: of the variables and options that say who this process is; `launcher`: whose variables they
/// are, as in Launch.
ConfigError invalid_launch(const std::string& launcher, const std::vector<std::string>& problems);
std::string problem_unset(const std::string& name);
std::string problem_number(const std::string& name, const std::string& text, int low, int high);
std::string problem_text(const std::string& name, const std::string& text, const std::string& example);
std::string problem_of_ranks(const std::string& name, int rank, const std::string& size_name, int size);
std::string problem_of_sizes(const std::string& local_name, int local_size, const std::string& name,
                             int size);
std::string problem_meeting_point(const std::string& text);
std::string problem_seconds(double seconds);
std::string warning_of_slurm(const std::string& launcher, int rank, int world_size, int task, int tasks);
std::string warning_of_interactive(const std::string& job, int tasks);

std::string problem_world_size(int saved, int now);
std::string warning_world_size(int saved, int now);
StepError sync_batch_norm_input(const std::vector<std::int64_t>& shape, std::int64_t features);
/// `batches`: in an epoch, of all ranks; -1: not known.
ConfigError sync_batch_norm_uneven(std::int64_t batches, int ranks);
std::string problem_batch_norm_member(const std::string& name);
StepError gradient_after_sync(const std::string& parameter);

// ---- what is under way ----
std::string during_vote(const std::string& phase);
std::string during_exchange();
std::string during_broadcast(std::int64_t tensors, std::int64_t bytes);
std::string during_sum(std::int64_t values, std::int64_t bytes);
std::string during_barrier();
std::string inside_a_step(const std::string& operation);
/// All of it, once the connections are closed.
std::string during_all();

// ---- why a rank was lost ----
std::string left_by_an_error();
std::string others_gave_up();
std::string meeting_point_lost(const std::string& meeting_point);
std::string no_answer_in(std::chrono::milliseconds waited);

// ---- mistakes in settings ----
std::string problem_rank_timeout(std::chrono::milliseconds value);
std::string problem_slice_bytes(std::int64_t value);

}  // namespace lockstep::message
