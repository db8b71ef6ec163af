// Collectives of several processes over Gloo.
#include "ranks/process_group.hpp"

#include "support/catch.hpp"
#include "support/ranks.hpp"

using namespace lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::Rank;
using test::run_ranks;

namespace {

std::shared_ptr<Collectives> join(const Rank& rank, GroupOptions options = {.timeout = 20s}) {
  const int size = rank.world_size;
  return join_ranks({.rank = rank.number,
                     .world_size = size,
                     .local_rank = rank.number,
                     .local_size = size,
                     .file = rank.directory / "meeting"},
                    options);
}

std::string text_of(const at::Tensor& tensor) {
  std::ostringstream text;
  const auto flat = tensor.to(torch::kCPU, torch::kDouble).reshape({-1}).contiguous();
  for (std::int64_t i = 0; i < flat.numel(); ++i) text << (i ? " " : "") << flat[i].item<double>();
  return text.str();
}

}  // namespace

CATCH_TEST_CASE("every rank gets all votes in rank order") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank);
    Vote mine{.phase = Phase::evaluation, .samples = 10 + rank.number, .digest = ~std::uint64_t{0}};
    mine.stop = rank.number == 1;
    std::string text;
    for (const auto& vote : group->vote(mine)) {
      text += std::to_string(vote.samples) + (vote.stop ? " stop" : "") +
              (vote.phase == Phase::evaluation && vote.digest == ~std::uint64_t{0} ? "; " : " wrong; ");
    }
    return text;
  });
  CATCH_CHECK(ranks.same_text() == "10; 11 stop; 12; ");
}

CATCH_TEST_CASE("an exchange hands over texts of different lengths, empty ones and zero bytes among them") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank);
    const std::string mine = rank.number == 0 ? "" : rank.number == 1 ? std::string("a\0b", 3) : "longest";
    const auto all = group->exchange(mine);
    const auto nothing = group->exchange("");
    const bool right = all == std::vector<std::string>{"", std::string("a\0b", 3), "longest"};
    return std::string(right && nothing == std::vector<std::string>(3) ? "right" : "wrong");
  });
  CATCH_CHECK(ranks.same_text() == "right");
}
