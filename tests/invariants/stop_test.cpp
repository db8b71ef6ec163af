#include "invariants/cases.hpp"

namespace lockstep::test {
namespace {

CATCH_TEMPLATE_TEST_CASE("a run that was stopped and went on equals one that was not", "", Follow, Ledger,
                         Cnn, OddFlat, OddSeparate) {
  check_in_every_precision<TestType>([](const auto& c) { return testing::check_stop(c); });
}

CATCH_TEST_CASE("a run that was stopped at any update and went on equals one that was not") {
  check_in_every_precision<Mlp>([](const auto& c) {
    return testing::check_stop(c, {1, 4, 7, 10, 12, 15, 18, 21, 22});
  });
}

/// Adds noise from a generator of its own.
struct OwnGenerator : Mlp {
  auto step() const {
    return [random = SampleRandom(1)](Perceptron& model, const Example& batch) mutable {
      return classify(model.forward(batch.data + random.uniform()), batch.target);
    };
  }
};

CATCH_TEST_CASE("a Step with a generator of its own is found out by stop") {
  const auto finding = testing::check_stop(OwnGenerator());
  CATCH_CHECK_THAT(finding.difference, Catch::Matchers::StartsWith("stopped at microbatch 1 and resumed: "));
}

}  // namespace
}  // namespace lockstep::test
