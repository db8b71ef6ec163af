#include <map>

#include "invariants/cases.hpp"
#include "support/temporary_directory.hpp"

namespace lockstep::test {
namespace {

CATCH_TEMPLATE_TEST_CASE("a run that was killed and resumed equals one that was not", "", Follow, Ledger, Cnn,
                         OddFlat, OddSeparate) {
  check_in_every_precision<TestType>([](const auto& c) { return testing::check_resume(c); });
}

CATCH_TEST_CASE("a run that was killed at any microbatch and resumed equals one that was not") {
  check_in_every_precision<Mlp>([](const auto& c) { return testing::check_resume(c, up_to(22)); });
}

/// Its Step weights losses by a count of its calls, which no checkpoint holds.
struct CountingStep : Mlp {
  auto step() const {
    return [calls = 0](Perceptron& model, const Example& batch) mutable -> StepOutput {
      auto output = classify(model.forward(batch.data), batch.target);
      output.loss = output.loss * (1.0 + 0.1 * ++calls);
      return output;
    };
  }
};

CATCH_TEST_CASE("a Step with state that no checkpoint holds is found out by resume") {
  // Killed at the first microbatch, it starts over, which hides the fault.
  CATCH_CHECK(testing::check_resume(CountingStep(), {1}).holds());
  const auto finding = testing::check_resume(CountingStep());
  CATCH_CHECK_THAT(finding.difference,
                   Catch::Matchers::StartsWith("killed at microbatch 11 and resumed: ") &&
                       Catch::Matchers::Contains("the train event at update 6, train/loss is"));
}

/// A momentum beside the optimizer's own state.
struct ForgetfulSgd : torch::optim::SGD {
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    const torch::NoGradGuard no_grad;
    auto& parameter = param_groups()[0].params()[0];
    momentum = 0.5 * momentum + 1;
    parameter.mutable_grad().mul_(momentum);
    return SGD::step(std::move(closure));
  }
  double momentum = 0;
};
struct ForgetfulOptimizer : Follow {
  std::unique_ptr<torch::optim::Optimizer> optimizer(OneWeight& model) const {
    return std::make_unique<ForgetfulSgd>(model.parameters(), torch::optim::SGDOptions(0.1));
  }
};

CATCH_TEST_CASE("an optimizer that does not save all its state is found out by resume") {
  CATCH_CHECK_FALSE(testing::check_resume(ForgetfulOptimizer()).holds());
}

/// With Torch's AdamW in the place of ours.
struct OddOfTorch : OddFlat {
  std::unique_ptr<torch::optim::Optimizer> optimizer(OddNet& model) const {
    return std::make_unique<GroupedOptimizer<torch::optim::AdamW>>(
        weight_decay_groups(model, 0.1), torch::optim::AdamWOptions(0.01).amsgrad(true));
  }
};

/// A run that is begun as `First` and resumed as `Second` ends where one that is `First` throughout does, to
/// rounding.
template <class First, class Second>
void check_exchange() {
  const In<First> begun(Precision::fp64);
  const In<Second> resumed(Precision::fp64);
  testing::CaseRun<In<First>> whole(begun, begun.settings());
  whole.train();

  const TemporaryDirectory directory;
  const TrainOptions options{.checkpoint_dir = directory.path(), .resume_from = latest};
  auto config = begun.settings().config;
  config.max_steps = 3;
  testing::CaseRun<In<First>>(begun, begun.settings()).train(config, options);
  testing::CaseRun<In<Second>> rest(resumed, resumed.settings());
  rest.train(options);

  CATCH_CHECK(rest.record().state.step == whole.record().state.step);
  const auto expected = whole.record().tensors;
  const auto found = rest.record().tensors;
  const std::map<std::string, at::Tensor> by_name(found.begin(), found.end());
  for (const auto& [name, tensor] : expected) {
    if (name.starts_with("optimizer/inner.weight"))
      continue;  // a second name, under which only Torch's have state
    CATCH_CAPTURE(name);
    CATCH_REQUIRE(by_name.contains(name));
    CATCH_CHECK(at::allclose(by_name.at(name), tensor, 1e-10, 1e-12));
  }
}

CATCH_TEST_CASE("a checkpoint of flat parameters goes on where they are separate, and the other way round") {
  check_exchange<OddFlat, OddSeparate>();
  check_exchange<OddSeparate, OddFlat>();
}

CATCH_TEST_CASE("a run begun with Torch's AdamW goes on with ours, and the other way round") {
  check_exchange<OddOfTorch, OddFlat>();
  check_exchange<OddFlat, OddOfTorch>();
}

}  // namespace
}  // namespace lockstep::test
