#include "invariants/cases.hpp"

namespace lockstep::test {
namespace {

CATCH_TEMPLATE_TEST_CASE("evaluating at any time changes no training bit", "", Follow, Ledger, Mlp, Cnn,
                         OddFlat, OddSeparate) {
  check_in_every_precision<TestType>([](const auto& c) { return testing::check_evaluate(c); });
}

struct CountingPerceptron : Perceptron {
  CountingPerceptron() : Perceptron(6, 12, true), calls(register_buffer("calls", torch::zeros({}))) {}
  at::Tensor calls;
};
/// Its Step changes a buffer in evaluation.
struct BufferInEvaluation : Mlp {
  std::shared_ptr<CountingPerceptron> model() const { return std::make_shared<CountingPerceptron>(); }
  auto step() const {
    return [](CountingPerceptron& model, const Example& batch) {
      if (!model.is_training()) model.calls.add_(1);
      return classify(model.forward(batch.data), batch.target);
    };
  }
};

CATCH_TEST_CASE("a Step that changes a buffer in evaluation is found out by evaluate") {
  const auto finding = testing::check_evaluate(BufferInEvaluation());
  CATCH_CHECK_THAT(
      finding.difference,
      Catch::Matchers::StartsWith("evaluated before every microbatch: model/calls differs in 1 of 1"));
}

}  // namespace
}  // namespace lockstep::test
