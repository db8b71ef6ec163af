#include "invariants/cases.hpp"

namespace lockstep::test {
namespace {

CATCH_TEMPLATE_TEST_CASE("microbatches give the update of their concatenation", "", Follow, Ledger, SmoothMlp,
                         Cnn) {
  CATCH_CHECK(testing::check_accumulate(TestType()).difference == "");
}

CATCH_TEMPLATE_TEST_CASE("microbatches give the update of their concatenation in the other precisions too",
                         "", SmoothMlp, Cnn) {
  // In the mixed ones the gradient of each microbatch is rounded to a half before it is added.
  const auto [precision, tolerance] = GENERATE(table<Precision, double>(
      {{Precision::fp32, 1e-4}, {Precision::bf16_mixed, 0.05}, {Precision::fp16_mixed, 0.01}}));
  CATCH_CAPTURE(to_string(precision));
  const auto finding =
      testing::check_accumulate(TestType(), {.precision = precision, .tolerance = tolerance});
  CATCH_CHECK(finding.difference == "");
}

CATCH_TEST_CASE("the weight is the mean of its window's targets, however they are cut") {
  testing::CaseRun<Follow> run(Follow(), Follow().settings());
  auto config = Follow().settings().config;
  config.max_steps = 1;
  run.train(config);
  CATCH_CHECK(run.model().value() == (1.0 + 2 + 3 + 4) / 4);
  config.max_steps = 2;
  run.train(config);
  CATCH_CHECK(run.model().value() == 10);  // the epoch's last window, of one sample
}

CATCH_TEST_CASE("a Step that returns a sum instead of a mean is found out by accumulate") {
  const auto finding = testing::check_accumulate(SummedLoss());
  CATCH_CHECK_THAT(finding.difference, Catch::Matchers::StartsWith("2 microbatches a window against"));
}

CATCH_TEST_CASE("a Step with batch statistics is found out by accumulate") {
  CATCH_CHECK_FALSE(testing::check_accumulate(Mlp()).holds());
}

}  // namespace
}  // namespace lockstep::test
