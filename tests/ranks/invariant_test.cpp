#include "invariants/cases.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

template <class C>
std::string checked(int ranks, const testing::AccumulateOptions& options = {}) {
  return run_ranks(ranks, [&](Rank& rank) {
           return "found: " + testing::check_ranks(C(), rank.launch(), options).difference;
         })
      .same_text();
}

CATCH_TEMPLATE_TEST_CASE("two and three ranks give the update of one that sees all their batches", "", Follow, Ledger,
                         SmoothMlp, Cnn) {
  CATCH_CHECK(checked<TestType>(2) == "found: ");
  CATCH_CHECK(checked<TestType>(3) == "found: ");
}

CATCH_TEMPLATE_TEST_CASE("ranks give the update of one in the other precisions too", "", SmoothMlp, Cnn) {
  const auto [precision, tolerance] = GENERATE(table<Precision, double>(
      {{Precision::fp32, 1e-4}, {Precision::bf16_mixed, 0.05}, {Precision::fp16_mixed, 0.01}}));
  CATCH_CAPTURE(to_string(precision));
  CATCH_CHECK(checked<TestType>(2, {.precision = precision, .tolerance = tolerance}) == "found: ");
}

CATCH_TEST_CASE("a Step that returns a sum instead of a mean is found out by ranks") {
  CATCH_CHECK_THAT(checked<SummedLoss>(2), Catch::Matchers::StartsWith("found: 2 ranks against one"));
}

/// Every tensor that the next update depends on but generators and buffers, of a run on all ranks.
template <class C>
std::string run_digest(const C& c, const CaseSettings& settings) {
  testing::CaseRun<C> run(c, settings);
  run.train();
  return testing::detail::digest_of_common_state(run);
}

CATCH_TEMPLATE_TEST_CASE("ranks end with equal bits, with dropout, batch statistics, tied, frozen and unused parameters",
                         "", Mlp, OddFlat, OddSeparate) {
  for (const int count : {2, 3}) {
    for (const auto precision : precisions) {
      CATCH_CAPTURE(count, to_string(precision));
      const auto ranks = run_ranks(count, [&](Rank& rank) {
        const In<TestType> c(precision);
        auto settings = c.settings();
        settings.accelerator.launch = rank.launch();
        settings.config.check_ranks_every = every_steps(1);
        return run_digest(c, settings);
      });
      CATCH_CHECK(ranks.same_text().size() == 64);
    }
  }
}

CATCH_TEMPLATE_TEST_CASE("slices sent during the backward pass or after it give equal bits", "", SmoothMlp, OddFlat) {
  for (const int count : {2, 3}) {
    for (const std::int64_t slice_bytes : {std::int64_t{1}, std::int64_t{200}, std::int64_t{25} << 20}) {
      const auto digest = [&](bool overlap) {
        return run_ranks(count, [&](Rank& rank) {
                 auto settings = TestType().settings();
                 settings.accelerator.launch = rank.launch();
                 settings.accelerator.slice_bytes = slice_bytes;
                 settings.accelerator.overlap_sync = overlap;
                 return run_digest(TestType(), settings);
               })
            .same_text();
      };
      CATCH_CAPTURE(count, slice_bytes);
      CATCH_CHECK(digest(true) == digest(false));
    }
  }
}

CATCH_TEMPLATE_TEST_CASE("all ranks do the same things together in the same order", "", Mlp, OddFlat, OddSeparate) {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    auto settings = TestType().settings();
    settings.accelerator.launch = rank.launch();
    settings.accelerator.slice_bytes = 100;
    settings.accelerator.check_collectives = true;
    return run_digest(TestType(), settings);
  });
  CATCH_CHECK(ranks.same_text().size() == 64);
}

/// Its parameters and averages on all ranks together, against one rank with longer windows.
template <class C>
void check_against_one_rank(int count, double tolerance) {
  const auto parameters = [](int ranks, const LaunchOptions& launch) {
    auto settings = testing::detail::plain_settings(C());
    settings.accelerator.precision = Precision::fp64;
    settings.accelerator.launch = launch;
    settings.accelerator.gradient_accumulation_steps *= ranks;
    auto run = std::make_unique<testing::CaseRun<C>>(C(), settings);
    run->train();
    return run;
  };
  const auto ranks = run_ranks(count, [&](Rank& rank) {
    const auto many = parameters(1, rank.launch());
    const auto one = parameters(rank.world_size, {.rank = 0, .world_size = 1});
    torch::manual_seed(C().settings().accelerator.seed);
    const auto start = C().model();
    return "found: " + testing::first_difference(testing::copies(trainable_parameters(*start)),
                                                 testing::copies(trainable_parameters(one->model())),
                                                 testing::copies(trainable_parameters(many->model())), tolerance);
  });
  CATCH_CHECK(ranks.same_text() == "found: ");
}

CATCH_TEMPLATE_TEST_CASE("parameters that only some ranks use follow one rank with windows as long", "", OddFlat,
                         OddSeparate) {
  check_against_one_rank<TestType>(2, 1e-6);
  check_against_one_rank<TestType>(3, 1e-6);
}

}  // namespace
}  // namespace lockstep::test
