// An optimizer_step on two ranks: L-BFGS with unequal shares, and what goes wrong on one of them.
#include "lockstep/testing.hpp"
#include "support/catch.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Ids = std::vector<std::string>;

constexpr auto step_with_closure = [](torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  optimizer.step(closure);
};

/// A loss that is no parabola, so that L-BFGS needs several evaluations.
StepOutput quartic(OneWeight& model, const at::Tensor& targets) {
  return {.loss = (model.w - targets).pow(4).mean(), .num_samples = targets.numel()};
}

/// Three microbatches a window where one rank has all of them; two ranks have {1, 2, 3}, {7} and {10}.
Batches quartic_batches() { return batches({{1, 2, 3}, {10}, {7}}); }

struct QuarticRun {
  QuarticRun(AcceleratorOptions accelerator_options, const OptimizerStep& optimizer_step, bool flat_parameters = true,
             OneWeightStep<at::Tensor> step = quartic)
      : accelerator(accelerator_options),
        trainer(accelerator, model, optimizer, source, std::move(step),
                {.flat_parameters = flat_parameters, .optimizer_step = optimizer_step}) {}

  Accelerator accelerator;
  OneWeight model;
  torch::optim::LBFGS optimizer{model.parameters(), torch::optim::LBFGSOptions(1).max_iter(4).line_search_fn("strong_wolfe")};
  Batches source = quartic_batches();
  Trainer<OneWeight, Batches, OneWeightStep<at::Tensor>> trainer;
};

AcceleratorOptions with_accumulation(AcceleratorOptions options, std::int64_t accumulation) {
  options.gradient_accumulation_steps = accumulation;
  return options;
}

CATCH_TEST_CASE("L-BFGS on two ranks gives the weights of one rank, flat or not, and goes on to the bit") {
  QuarticRun alone(with_accumulation({.precision = Precision::fp64, .device = at::kCPU}, 3), step_with_closure);
  alone.trainer.train({.epochs = 4});
  const double expected = alone.model.value();
  CATCH_CHECK(std::abs(expected - 5) < 1);
  for (const bool flat : {true, false}) {
    const TemporaryDirectory folder;
    const auto train = [&](std::int64_t epochs, const TrainOptions& train_options) {
      const auto ranks = run_ranks(2, [&](Rank& rank) {
        QuarticRun run(with_accumulation(rank.options(), 2), step_with_closure, flat);
        run.trainer.train({.epochs = epochs}, train_options);
        return testing::text_of(run.model.value());
      });
      return ranks.same_text();
    };
    const auto straight = train(4, {});
    CATCH_CHECK(std::stod(straight) == Approx(expected).epsilon(1e-12));
    (void)train(2, {.checkpoint_dir = folder.path()});
    CATCH_CHECK(train(4, {.checkpoint_dir = folder.path(), .resume_from = latest}) == straight);
  }
}

CATCH_TEST_CASE("a Step that fails on one rank inside the closure ends both, with the weights from before the window") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    int calls = 0;
    QuarticRun run(with_accumulation(rank.options(), 2), step_with_closure, true,
                   [&](OneWeight& model, const at::Tensor& batch) {
                     if (++calls == 4 && rank.number == 0) throw std::runtime_error("no more batches today");
                     return quartic(model, batch);
                   });
    try {
      run.trainer.train({.epochs = 4});
    } catch (const std::exception& error) {
      return testing::text_of(run.model.value()) + " " + error.what();
    }
    return "trained";
  });
  CATCH_CHECK_THAT(ranks.texts()[0], Contains("no more batches today") && !Contains("rank-failed"));
  CATCH_CHECK_THAT(ranks.texts()[1], Contains("rank-failed") && Contains("rank 0") && Contains("no more batches today"));
  for (const auto& text : ranks.texts()) CATCH_CHECK_THAT(text, Catch::Matchers::StartsWith("0 "));
}

CATCH_TEST_CASE("an optimizer_step that throws on one rank ends both") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    QuarticRun run(rank.options(), [&rank](torch::optim::Optimizer& optimizer, const LossClosure& closure) {
      if (rank.number == 1) throw std::runtime_error("not me");
      optimizer.step(closure);
    });
    run.trainer.train({.epochs = 1});
    return "trained";
  });
  CATCH_CHECK(ranks[0].error_id == "rank-failed");
  CATCH_CHECK_THAT(ranks[0].text, Contains("not me"));
  CATCH_CHECK(ranks[1].text == "not me");
}

CATCH_TEST_CASE("a closure that the ranks call unequally often is an error on both") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    QuarticRun run(rank.options(), [&rank](torch::optim::Optimizer&, const LossClosure& closure) {
      for (int i = 0; i <= rank.number; ++i) (void)closure();
    });
    run.trainer.train({.epochs = 1});
    return "trained";
  });
  CATCH_CHECK(ranks.error_ids() == Ids{"closure-calls-differ", "closure-calls-differ"});
  CATCH_CHECK_THAT(ranks[0].text, Contains("once more on rank 1, and has returned on rank 0"));
}

}  // namespace
}  // namespace lockstep::test
