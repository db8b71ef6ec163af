#include "invariants/cases.hpp"

namespace lockstep::test {
namespace {

CATCH_TEMPLATE_TEST_CASE("a skipped window changes nothing but the position, a failed one nothing at all", "",
                         Follow, Ledger, Mlp, Cnn, OddFlat, OddSeparate) {
  check_in_every_precision<TestType>([](const auto& c) { return testing::check_skip(c); });
}

/// Its Step keeps the weights small by itself.
struct ClampingStep : Mlp {
  auto step() const {
    return [](Perceptron& model, const Example& batch) {
      {
        const torch::NoGradGuard no_grad;
        model.last->weight.mul_(0.999);
      }
      return classify(model.forward(batch.data), batch.target);
    };
  }
};

CATCH_TEST_CASE("a Step that writes to a parameter is found out by skip") {
  const auto finding = testing::check_skip(ClampingStep());
  CATCH_CHECK_THAT(
      finding.difference,
      Catch::Matchers::StartsWith("a window without samples after 0 updates: model/last.weight differs"));
}

}  // namespace
}  // namespace lockstep::test
