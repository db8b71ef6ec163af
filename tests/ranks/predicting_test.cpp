// Predictions of several ranks: those of one that sees everything.
#include "support/catch.hpp"
#include "support/fixtures.hpp"
#include "support/process_group.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

/// Ten times each target, and how many samples were in its batch.
constexpr auto tenfold = [](OneWeight& model, const auto& batch) -> Outputs {
  const auto& targets = targets_of(batch);
  return {{"rows", torch::full_like(targets, targets.numel()).to(torch::kInt)}, {"ten", model.w * targets}};
};

std::string text_of(const Outputs& outputs) {
  return test::text_of(outputs.at("ten")) + "; " + test::text_of(outputs.at("rows"));
}

Ranks predicted(int count, auto source) {
  return run_ranks(count, [source](Rank& rank) {
    const Accelerator accelerator(rank.options());
    OneWeight model(10);
    return text_of(predict(accelerator, model, source, tenfold));
  });
}

}  // namespace

CATCH_TEST_CASE("each sample is predicted once and in its place, on one, two and three ranks") {
  for (const int ranks : {1, 2, 3}) {
    // Batches of 2, 2, 2 and 1 samples, so that the ranks have different numbers of both.
    for (const bool shuffle : {false, true}) {
      for (const bool even : {false, true}) {
        const auto loader =
            numbered_loader(7, {.batch_size = 2, .shuffle = shuffle, .seed = 1, .even_batches = even});
        CATCH_CHECK_THAT(predicted(ranks, loader).same_text(), Catch::StartsWith("0 10 20 30 40 50 60; "));
      }
    }
    CATCH_CHECK(predicted(ranks, batches({{3}, {1, 2}, {}, {7, 9}})).same_text() ==
                "30 10 20 70 90; 1 2 2 2 2");
  }
}

CATCH_TEST_CASE("ranks that split batches predict each sample once too") {
  // Three ranks have 2, 1 and 1 samples of a batch of 4, and of the last one of 2: 1, 1 and 0.
  const auto loader = numbered_loader(6, {.batch_size = 6, .split_batches = true});
  CATCH_CHECK(predicted(3, loader).same_text() == "0 10 20 30 40 50; 2 2 2 2 2 2");
  const auto uneven = numbered_loader(8, {.batch_size = 6, .split_batches = true});
  CATCH_CHECK(predicted(3, uneven).same_text() == "0 10 20 30 40 50 60 70; 2 2 2 2 2 2 1 1");
}

CATCH_TEST_CASE("a set smaller than the number of ranks is predicted by those that have some of it") {
  CATCH_CHECK(predicted(3, numbered_loader(2, {.batch_size = 1})).same_text() == "0 10; 1 1");
  CATCH_CHECK(predicted(3, numbered_loader(2, {.batch_size = 4})).same_text() == "0 10; 2 2");
  CATCH_CHECK(predicted(2, Batches{}).error_ids() ==
              std::vector<std::string>{"nothing-to-predict", "nothing-to-predict"});
}

CATCH_TEST_CASE("outputs of different sizes on two ranks are refused on both, and so is a failure on one") {
  const auto outputs = [](auto&& function) {
    return run_ranks(2, [function](Rank& rank) {
      const Accelerator accelerator(rank.options());
      OneWeight model(1);
      (void)predict(accelerator, model, numbered_loader(2),
                    [&](OneWeight&, const Example&) { return function(rank); });
      return std::string("predicted");
    });
  };
  const auto differ = outputs([](Rank& rank) -> at::Tensor { return torch::zeros({1, rank.number + 2}); });
  CATCH_CHECK(differ.error_ids() == std::vector<std::string>{"predictions-differ", "predictions-differ"});
  CATCH_CHECK_THAT(differ[1].text, Contains("Float rows of [2]") && Contains("Float rows of [3]"));
  const auto fails = outputs([](Rank& rank) -> at::Tensor { return torch::zeros({1 + rank.number}); });
  CATCH_CHECK(fails.error_ids() == std::vector<std::string>{"rank-failed", "prediction-rows"});
}

CATCH_TEST_CASE("ranks predict with rank 0's buffers and the average, and train on to the same bits") {
  const auto trained = [](bool predicting) {
    return run_ranks(2,
                     [predicting](Rank& rank) {
                       OneWeightRun run(numbered_batches(8), follow,
                                        {.lr = 0.25, .ema_decay = 0.5, .launch = rank.launch()});
                       (void)run.trainer.train({.max_steps = 2});
                       std::string text;
                       if (predicting) {
                         const Batches three = batches({{1}, {1}, {1}});
                         text = test::text_of(run.trainer.predict(
                             three,
                             [](OneWeight& model, const at::Tensor& x) -> at::Tensor {
                               return (model.w * x).mul(1024).floor();
                             },
                             Weights::ema));
                       }
                       (void)run.trainer.train({.max_steps = 4});
                       return text + "|" + std::to_string(run.w());
                     })
        .same_text();
  };
  // w: 0, then 0.25 * mean(0, 1) = 0.125, then 0.75 * 0.125 + 0.25 * 2.5 = 0.71875; the average is 0.0625,
  // then 0.390625.
  const auto with = trained(true);
  CATCH_CHECK_THAT(with, Catch::StartsWith("400 400 400|"));
  CATCH_CHECK("400 400 400" + trained(false) == with);
}
