// A rank that is killed, frozen or leaves: how the others end.
#include "support/catch.hpp"
#include "support/process_group.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::join;
using test::Rank;
using test::Ranks;
using test::run_ranks;

namespace {

/// The things that ranks do together, each over and over.
const std::vector<std::pair<std::string, std::function<void(Collectives&)>>> operations = {
    {"a vote, phase window", [](Collectives& group) { (void)group.vote({}); }},
    {"an exchange of texts", [](Collectives& group) { (void)group.exchange("text"); }},
    {"a broadcast of 1 tensors", [](Collectives& group) { group.broadcast({torch::ones({3})}); }},
    {"a sum of 3 values", [](Collectives& group) { group.sum(torch::ones({3}))->wait(); }},
    {"a barrier", [](Collectives& group) { group.barrier(); }},
};

/// Joins; the rank `lost` leaves by `how` after the first vote, the others go on with `operation`.
Ranks lose_one(int count, int lost, const std::function<void(Collectives&)>& operation,
               const std::function<void(Collectives&)>& how, test::RunRanksOptions options = {},
               std::chrono::milliseconds timeout = 10s) {
  return run_ranks(
      count,
      [&](Rank& rank) {
        const auto group = join(rank, {.timeout = timeout});
        (void)group->vote({});
        if (rank.number == lost) {
          how(*group);
          return std::string("left");
        }
        rank.says("goes on");
        // A rank need not notice at once: a broadcast may reach it without the help of the one that is lost.
        for (int i = 0; i < 1000; ++i) operation(*group);
        return std::string("unnoticed");
      },
      options);
}

void check_others(const Ranks& ranks, std::size_t lost, const std::string& who, const std::string& what) {
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (rank == lost) continue;
    CATCH_INFO(ranks.report());
    CATCH_CHECK(ranks[rank].error_id == "rank-lost");
    CATCH_CHECK_THAT(ranks[rank].text, Contains(who) && Contains(what));
  }
}

const auto killed = [](Collectives&) { ::raise(SIGKILL); };
const auto frozen = [](Collectives&) { ::raise(SIGSTOP); };

}  // namespace

CATCH_TEST_CASE("a rank that is killed is named by the others at once, whatever they were doing") {
  for (const auto& [name, operation] : operations) {
    CATCH_INFO(name);
    const auto ranks = lose_one(3, 1, operation, killed);
    CATCH_CHECK(WIFSIGNALED(ranks[1].status));
    check_others(ranks, 1, "rank 1 ended or stopped answering", name);
    // The cause in a few words, without Gloo's own sources and advice.
    CATCH_CHECK_THAT(ranks[0].text, Contains(" by peer") && !Contains("gloo/") && !Contains("typically"));
    CATCH_CHECK(ranks[0].after < 5s);
  }
}

CATCH_TEST_CASE("a rank that is frozen is named when the time is over") {
  for (const auto& [name, operation] : operations) {
    CATCH_INFO(name);
    const auto ranks = lose_one(3, 2, operation, frozen, {}, 500ms);
    CATCH_CHECK(ranks[2].frozen);
    check_others(ranks, 2, "rank 2 ended or stopped answering", name);
  }
}

CATCH_TEST_CASE("rank 0 is named when it is lost with the store that it serves") {
  const auto vote = operations.front().second;
  const auto dead = lose_one(3, 0, vote, killed, {.over_tcp = true});
  check_others(dead, 0, "rank 0 ended or stopped answering", "does not answer any more");
  const auto stopped = lose_one(3, 0, vote, frozen, {.over_tcp = true}, 3s);
  CATCH_CHECK(stopped[0].frozen);
  check_others(stopped, 0, "rank 0 ended or stopped answering", "does not answer any more");
}

CATCH_TEST_CASE("no rank waits longer for a frozen one than the timeout and a second") {
  const auto ranks =
      run_ranks(2,
                [](Rank& rank) {
                  const auto group = join(rank, {.timeout = 3s});
                  (void)group->vote({});
                  if (rank.number == 0) ::raise(SIGSTOP);
                  const auto start = std::chrono::steady_clock::now();
                  const auto id = test::thrown_id<RankError>([&] { (void)group->vote({}); });
                  const auto waited = std::chrono::steady_clock::now() - start;
                  return id + (waited >= 2900ms && waited < 4500ms ? " in time" : " at the wrong time");
                },
                {.over_tcp = true});
  CATCH_CHECK(ranks[1].text == "rank-lost in time");
}

CATCH_TEST_CASE("a rank that leaves says why, and the others report it") {
  for (const bool over_tcp : {false, true}) {
    for (const int leaving : {0, 2}) {
      const auto ranks = lose_one(3, leaving, operations.front().second,
                                  [](Collectives& group) { group.abandon("no memory for the batch"); },
                                  {.over_tcp = over_tcp});
      CATCH_CHECK(ranks[static_cast<std::size_t>(leaving)].text == "left");
      check_others(ranks, static_cast<std::size_t>(leaving),
                   "rank " + std::to_string(leaving) + " ended or stopped answering",
                   "no memory for the batch");
    }
  }
}

CATCH_TEST_CASE("an exception that destroys a rank's group reaches the others as a lost rank") {
  const auto ranks =
      lose_one(2, 1, operations.front().second, [](Collectives&) { throw std::runtime_error("mine"); });
  CATCH_CHECK(ranks[1].text == "mine");
  check_others(ranks, 1, "rank 1 ended or stopped answering", "an error ended its program");
}

CATCH_TEST_CASE("sums that a lost rank will never join end with the error that names it") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 10s});
    const auto values = torch::ones({12});
    std::vector<std::unique_ptr<PendingSum>> pending;
    for (int slice = 0; slice < 12; ++slice) {
      if (rank.number == 1 && slice == 7) group->abandon("the backward pass failed");
      if (rank.number == 1 && slice == 7) return std::string("left");
      pending.push_back(group->sum(values.narrow(0, slice, 1)));
    }
    std::string first;
    for (const auto& sum : pending) {
      const auto id = test::thrown_id<RankError>([&] { sum->wait(); });
      if (!id.empty() && !group->usable()) first = id;
    }
    return first + (group->usable() ? " still usable" : "");
  });
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{"rank-lost", "left", "rank-lost"});
}

CATCH_TEST_CASE("a lost group gives its error again to whoever calls it") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 10s});
    (void)group->vote({});
    if (rank.number == 1) ::_exit(3);
    std::string ids;
    for (const auto& [name, operation] : operations) {
      ids += test::thrown_id<RankError>([&] { operation(*group); }) + " ";
      ids += test::thrown_id<RankError>([&] { operation(group->inside_step()); }) + " ";
    }
    group->abandon("too late");
    return ids + (group->usable() ? "usable" : "unusable");
  });
  CATCH_CHECK(WEXITSTATUS(ranks[1].status) == 3);
  std::string expected;
  for (std::size_t i = 0; i < 2 * operations.size(); ++i) expected += "rank-lost ";
  CATCH_CHECK(ranks[0].text == expected + "unusable");
}

CATCH_TEST_CASE(
    "a rank that fails inside a Step frees those that wait for it there, and all meet at the vote") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 10s});
    std::string seen;
    if (rank.number == 1) {
      group->inside_step().abandon("a layer failed");
    } else {
      try {
        group->inside_step().sum(torch::ones({2}))->wait();
      } catch (const RankError& error) {
        seen = error.what();
      }
    }
    const auto votes = group->vote({.failed = rank.number == 1});
    return (votes[1].failed && !votes[0].failed && group->usable() && !group->inside_step().usable()
                ? "voted "
                : "") +
           seen;
  });
  CATCH_CHECK(ranks.texts()[1] == "voted ");
  for (const std::size_t rank : {0U, 2U}) {
    CATCH_CHECK_THAT(ranks[rank].text, Contains("voted [rank-lost] rank 1") && Contains("a layer failed") &&
                                           Contains("a sum of 2 values, 8 bytes inside a Step"));
  }
}

CATCH_TEST_CASE("a rank that ends in order is not waited for, with sums that nobody waited for too") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 10s});
    const auto values = torch::ones({5});
    auto pending = group->sum(values);
    pending.reset();
    group->barrier();
    return std::string("ended");
  });
  CATCH_CHECK(ranks.same_text() == "ended");
}

CATCH_TEST_CASE("a rank that computes while another one dies is not taken for lost") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 10s});
    (void)group->vote({});
    if (rank.number == 1) ::raise(SIGKILL);
    if (rank.number == 2) std::this_thread::sleep_for(1500ms);
    (void)group->vote({});
    return std::string("unnoticed");
  });
  check_others(ranks, 1, "rank 1 ended or stopped answering", "a vote");
}

CATCH_TEST_CASE("a rank that computes for longer than the timeout is the one that is named") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 500ms});
    (void)group->vote({});
    if (rank.number == 1) std::this_thread::sleep_for(2000ms);
    (void)group->vote({});
    return std::string("unnoticed");
  });
  CATCH_CHECK_THAT(ranks[0].text, Contains("rank 1 ended or stopped answering"));
  CATCH_CHECK(ranks[1].error_id == "rank-lost");
}
