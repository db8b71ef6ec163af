// How the ranks of a run find each other, and what they say when they do not.
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "support/catch.hpp"
#include "support/process_group.hpp"

using namespace lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::join;
using test::launch_of;
using test::Rank;
using test::run_ranks;

namespace {

std::string greet(const Launch& launch, std::chrono::milliseconds timeout = 10s) {
  const auto group = join_ranks(launch, {.timeout = timeout});
  std::string all;
  for (const auto& text : group->exchange(std::to_string(launch.rank))) all += text;
  return all;
}

}  // namespace

CATCH_TEST_CASE(
    "a rank that does not come is named by those that came, and they do not wait longer than they were "
    "told") {
  for (const bool over_tcp : {false, true}) {
    const auto ranks = run_ranks(4,
                                 [](Rank& rank) {
                                   if (rank.number == 2) return std::string("stayed away");
                                   // The ranks need not begin to wait together.
                                   if (rank.number == 3) std::this_thread::sleep_for(200ms);
                                   return greet(launch_of(rank), 700ms);
                                 },
                                 {.over_tcp = over_tcp});
    for (const std::size_t rank : {0U, 1U, 3U}) {
      CATCH_INFO("rank " << rank << (over_tcp ? " over TCP" : " at a file") << ": " << ranks[rank].text);
      CATCH_CHECK(ranks[rank].error_id == "ranks-not-joined");
      CATCH_CHECK_THAT(ranks[rank].text, Contains("the 4 ranks") && Contains("Missing: rank 2."));
      CATCH_CHECK(ranks[rank].after < 6s);
    }
  }
}

CATCH_TEST_CASE("ranks that find nobody who serves their meeting point miss rank 0") {
  const auto ranks = run_ranks(3,
                               [](Rank& rank) {
                                 if (rank.number == 0) return std::string("stayed away");
                                 return greet(launch_of(rank), 500ms);
                               },
                               {.over_tcp = true});
  for (const std::size_t rank : {1U, 2U}) {
    CATCH_CHECK(ranks[rank].error_id == "ranks-not-joined");
    CATCH_CHECK_THAT(ranks[rank].text, Contains("Missing: rank 0.") && Contains("127.0.0.1:"));
  }
}

CATCH_TEST_CASE("the file that the ranks met at is gone when all have ended in order") {
  const test::TemporaryDirectory folder;
  const auto file = folder.path() / "meeting";
  const auto ranks = run_ranks(2, [&](Rank& rank) {
    auto launch = launch_of(rank);
    launch.file = file;
    return greet(launch);
  });
  CATCH_CHECK(ranks.same_text() == "01");
  CATCH_CHECK_FALSE(std::filesystem::exists(file));
}

CATCH_TEST_CASE("a meeting point that cannot be is an error with its cause") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    auto launch = launch_of(rank);
    launch.file = rank.directory / "no such folder" / "meeting";
    return greet(launch, 500ms);
  });
  CATCH_CHECK(ranks.error_ids() == std::vector<std::string>(2, "ranks-not-joined"));
  CATCH_CHECK_THAT(ranks[0].text, Contains("No such file or directory"));
}

CATCH_TEST_CASE("two processes of one rank, or the file of an earlier start, are refused") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    auto launch = launch_of(rank);
    launch.world_size = launch.local_size = 2;
    if (rank.number == 2) {
      std::this_thread::sleep_for(300ms);
      launch.rank = 1;
    }
    if (rank.number == 0) std::this_thread::sleep_for(600ms);
    return greet(launch);
  });
  CATCH_CHECK(ranks[0].text == "01");
  CATCH_CHECK(ranks[1].text == "01");
  CATCH_CHECK(ranks[2].error_id == "rank-taken");
  CATCH_CHECK_THAT(ranks[2].text, Contains("as rank 1"));
}

CATCH_TEST_CASE("a restarted run does not meet the leftovers of its last start") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    auto launch = launch_of(rank);
    // What a start leaves that was killed before it could tidy up.
    c10d::FileStore(launch.file, -1).add("lockstep/0/0/came/" + std::to_string(launch.rank), 1);
    launch.restart = 1;
    return greet(launch);
  });
  CATCH_CHECK(ranks.same_text() == "01");
}

CATCH_TEST_CASE("no rank serves a meeting point at which the launcher listens") {
  // Rank 2 of this test is the launcher.
  const auto ranks = run_ranks(3,
                               [](Rank& rank) {
                                 if (rank.number == 2) {
                                   c10d::TCPStoreOptions options;
                                   options.port = static_cast<std::uint16_t>(rank.port);
                                   options.isServer = true;
                                   options.waitWorkers = false;
                                   c10d::TCPStore store("127.0.0.1", options);
                                   while (!std::filesystem::exists(rank.directory / "done-0") ||
                                          !std::filesystem::exists(rank.directory / "done-1")) {
                                     std::this_thread::sleep_for(5ms);
                                   }
                                   return std::string("launcher");
                                 }
                                 auto launch = launch_of(rank);
                                 launch.world_size = launch.local_size = 2;
                                 launch.listened_to = true;
                                 auto text = greet(launch);
                                 text += greet(launch);  // another run of the same program
                                 launch.restart = 1;
                                 text += greet(launch);
                                 std::ofstream(rank.directory / ("done-" + std::to_string(rank.number)))
                                     << "yes";
                                 return text;
                               },
                               {.over_tcp = true});
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{"010101", "010101", "launcher"});
}

CATCH_TEST_CASE("ranks of different versions are told so before they exchange anything") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    if (rank.number == 0) return greet(launch_of(rank));
    c10d::FileStore store(launch_of(rank).file, -1);
    static_cast<c10d::Store&>(store).set("lockstep/0/0/version/1", "lockstep 0.0.1 with torch 2.11.0");
    std::this_thread::sleep_for(100ms);
    return std::string("an old build");
  });
  CATCH_CHECK(ranks[0].error_id == "ranks-differ");
  CATCH_CHECK_THAT(ranks[0].text,
                   Contains("rank 1 runs lockstep 0.0.1 with torch 2.11.0, this rank lockstep "));
}

CATCH_TEST_CASE("a rank that dies between meeting and connecting ends the others' start") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    if (rank.number != 1) return greet(launch_of(rank), 1500ms);
    c10d::FileStore store(launch_of(rank).file, -1);
    static_cast<c10d::Store&>(store).set("lockstep/0/0/process/1", "");
    static_cast<c10d::Store&>(store).set("lockstep/0/0/version/1", store.get_to_str("lockstep/0/0/version/0"));
    return std::string("gone");
  });
  for (const std::size_t rank : {0U, 2U}) {
    CATCH_CHECK(ranks[rank].error_id == "ranks-not-joined");
    CATCH_CHECK_THAT(ranks[rank].text, Contains("Missing: rank 1."));
    CATCH_CHECK(ranks[rank].after < 5s);
  }
}
