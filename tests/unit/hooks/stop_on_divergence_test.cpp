#include "lockstep/hooks/stop_on_divergence.hpp"

#include "support/fixtures.hpp"
#include "support/ranks.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

/// The loss is the batch's mean, whatever the weight.
StepOutput given_loss(OneWeight& model, const at::Tensor& batch) {
  return {.loss = model.w - model.w.detach() + batch.mean(), .num_samples = 1};
}

/// Updates until the end of one epoch of these losses.
std::int64_t updates(const std::vector<double>& losses, StopOnDivergenceOptions options) {
  Batches source;
  for (const double loss : losses) source.push_back(torch::full({1}, loss, torch::kDouble));
  OneWeightRun run(source, given_loss, {.hooks = StopOnDivergence(options)});
  return run.trainer.train({.epochs = 1}).step;
}

}  // namespace

CATCH_TEST_CASE("a run stops at the first look whose mean loss is too far above the long mean") {
  const StopOnDivergenceOptions options{.every = 2, .factor = 2};
  // Means of two updates each: 1, 1, 1.9; then 2.7 over a long mean of 1.3.
  CATCH_CHECK(updates({1, 1, 1, 1, 1.8, 2, 2, 3.4, 9, 9}, options) == 8);
  CATCH_CHECK(updates({1, 1, 1, 1, 1.8, 2, 2, 3.0, 3, 3}, options) == 10);
}

CATCH_TEST_CASE("one high loss between two looks does not stop a run") {
  CATCH_CHECK(updates({1, 1, 1, 1, 1, 4, 1, 1, 1, 1}, {.every = 5}) == 10);
}

CATCH_TEST_CASE("a loss below zero diverges by its size") {
  CATCH_CHECK(updates({-2, -2, -1, 1, 1}, {.every = 1, .memory = 1}) == 4);
}

CATCH_TEST_CASE("a resumed run stops where it would have stopped") {
  const TemporaryDirectory folder;
  std::int64_t step = 0;
  for (const std::int64_t until : {3, 8}) {
    OneWeightRun run(batches({{1}, {1}, {1}, {1}, {2.5}, {2.5}, {1}, {1}}), given_loss,
                     {.hooks = StopOnDivergence({.every = 2})});
    step = run.trainer.train({.max_steps = until}, {.checkpoint_dir = folder.path(), .resume_from = latest})
               .step;
  }
  CATCH_CHECK(step == 6);
}

CATCH_TEST_CASE("settings that cannot work are refused together") {
  CATCH_CHECK_THROWS_WITH(StopOnDivergence({.every = 0, .memory = 0, .factor = 1}),
                          Contains("invalid-settings") && Contains("every is 0") && Contains("memory is 0") &&
                              Contains("factor is 1"));
}

CATCH_TEST_CASE("a loss that diverges on one rank stops all") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    StopOnDivergence hook({.every = 1});
    const auto step = [&](OneWeight& model, const at::Tensor& batch) -> StepOutput {
      const double own = rank.number == 1 && batch.item<double>() > 3 ? 10 : 1;
      return {.loss = model.w - model.w.detach() + own, .num_samples = 1};
    };
    OneWeightRun run(numbered_batches(12), step, {.launch = rank.launch(), .hooks = {hook}});
    const auto state = run.trainer.train({.epochs = 1});
    return std::to_string(state.step) + " " + state.stop_reason.value_or("");
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK_THAT(ranks.same_text(),
                   Contains("3 the loss diverges: its mean over the last 1 updates is 10.00"));
}
