#include "lockstep/hooks/epoch_printer.hpp"

#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

CATCH_TEST_CASE(
    "each epoch is one line with its means and its evaluation, once, also over two train() calls") {
  OneWeightRun run(numbered_batches(2), ledger, {.evaluation_set = batches({{0}}), .hooks = EpochPrinter()});
  const auto first = captured_stderr([&] { run.trainer.train({.epochs = 1, .checkpoint_every = {}}); });
  const auto line =
      "epoch 1  step 2  epoch/loss -0.5000  epoch/grad_norm 1.000  lr 1.000  validation/loss -2.000\n";
  CATCH_CHECK_THAT(first, Contains(line));
  const auto later = captured_stderr([&] { run.trainer.train({.epochs = 3, .checkpoint_every = {}}); });
  CATCH_CHECK_THAT(later, !Contains("epoch 1  step 2"));
  CATCH_CHECK_THAT(later, Contains("epoch 2  step 4") && Contains("epoch 3  step 6"));
}
