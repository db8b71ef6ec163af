// A run of 60 updates on two ranks, killed with SIGKILL at every one of its 180 microbatches and started
// again.
#include <csignal>
#include <iostream>

#include "invariants/cases.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

constexpr std::int64_t microbatches = 180;
constexpr std::int64_t never = 0;

/// The microbatches of a LongRun on each of two ranks.
struct LongRunOfRanks : LongRun {
  NoisyPoints train_set() const { return {4 * 89 + 2, {6}}; }
};

/// Goes on from the latest checkpoint; both ranks are killed at this call of their Step. Returns what each
/// rank's next update would depend on.
Ranks train(const std::filesystem::path& checkpoints, std::int64_t killed_at) {
  return run_ranks(2, [&](Rank& rank) {
    auto settings = LongRunOfRanks().settings();
    settings.accelerator.launch = rank.launch();
    testing::CaseRun<LongRunOfRanks> run(LongRunOfRanks(), settings);
    std::int64_t calls = 0;
    run.set_intercept([&](std::int64_t microbatch, const std::function<StepOutput()>& step) {
      if (microbatch == killed_at) ::raise(SIGKILL);
      ++calls;
      return step();
    });
    run.train({.checkpoint_dir = checkpoints, .resume_from = latest});
    const auto record = run.record();
    return sha256(record.tensors) + " after update " + std::to_string(record.state.step) +
           (calls == microbatches ? " of a whole run" : "");
  });
}

/// Kills at every `stride`-th microbatch. Prints how many runs equal the uninterrupted one.
void kill_and_resume(std::int64_t stride) {
  const TemporaryDirectory folder;
  const auto whole = train(folder.path() / "whole", never).texts();
  std::vector<std::string> expected;
  for (const auto& text : whole) {
    const auto end = text.find(" of a whole run");
    CATCH_REQUIRE(end != std::string::npos);
    expected.push_back(text.substr(0, end));
    CATCH_REQUIRE(expected.back().ends_with(" after update 60"));
  }
  std::int64_t tried = 0;
  std::int64_t equal = 0;
  for (std::int64_t at = stride; at <= microbatches; at += stride) {
    CATCH_CAPTURE(at);
    const auto checkpoints = folder.path() / std::to_string(at);
    const auto killed = train(checkpoints, at);
    // The other one may notice its loss, and end with an error, before it gets to its own kill.
    CATCH_CHECK((WIFSIGNALED(killed[0].status) || WIFSIGNALED(killed[1].status)));
    auto resumed = train(checkpoints, never).texts();
    for (auto& text : resumed)
      text = text.substr(0, text.find(" of a whole run"));  // the first ones had no checkpoint
    ++tried;
    equal += resumed == expected;
    CATCH_CHECK(resumed == expected);
    std::filesystem::remove_all(checkpoints);
  }
  std::cout << "two ranks: " << equal << " of " << tried
            << " killed and resumed runs equal the uninterrupted one\n";
}

CATCH_TEST_CASE(
    "two ranks killed at any tenth of their 180 microbatches and started again end with the bits of two that "
    "were not") {
  kill_and_resume(18);
}

CATCH_TEST_CASE(
    "two ranks killed at any of their 180 microbatches and started again end with the bits of two that were "
    "not",
    "[.][every-microbatch]") {
  kill_and_resume(1);
}

}  // namespace
}  // namespace lockstep::test
