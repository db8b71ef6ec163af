#include "invariants/cases.hpp"

namespace lockstep::test {
namespace {

CATCH_TEMPLATE_TEST_CASE("the rate depends on the number of the update alone", "", Follow, Ledger, Mlp, Cnn,
                         OddFlat, OddSeparate) {
  check_in_every_precision<TestType>([](const auto& c) { return testing::check_schedule(c); });
}

CATCH_TEST_CASE("the weight that adds up the rates has the sum that was worked out") {
  testing::CaseRun<Ledger> run(Ledger(), Ledger().settings());
  run.train();
  CATCH_CHECK(run.trainer().state().step == 8);
  CATCH_CHECK(run.model().value() == -(0 + 0.5 + 1 + 0.75 + 0.5 + 0.25 + 0 + 0));
}

/// Decays the rate by itself.
struct DecayingSgd : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    auto loss = SGD::step(std::move(closure));
    auto& options = param_groups()[0].options();
    options.set_lr(options.get_lr() * 0.5);
    return loss;
  }
};
struct SelfDecayingOptimizer : Ledger {
  std::unique_ptr<torch::optim::Optimizer> optimizer(OneWeight& model) const {
    return std::make_unique<DecayingSgd>(model.parameters(), torch::optim::SGDOptions(1));
  }
};

CATCH_TEST_CASE("an optimizer that changes its own rate is found out by schedule") {
  const auto finding = testing::check_schedule(SelfDecayingOptimizer());
  CATCH_CHECK(finding.difference == "undisturbed: the rate of update 2 is 0.25 instead of 0.5");
}

}  // namespace
}  // namespace lockstep::test
