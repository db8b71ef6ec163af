#include "lockstep/loop/step.hpp"

#include "support/catch.hpp"
#include "support/fixtures.hpp"

using namespace lockstep;

namespace {

struct NetImpl : torch::nn::Module {};
TORCH_MODULE(Net);
struct Derived : NetImpl {};
struct Batch {};

StepOutput function(NetImpl&, const Batch&) { return {}; }
StepOutput by_value(NetImpl&, Batch) noexcept { return {}; }
struct Callable {
  StepOutput operator()(const NetImpl&, const Batch&) const { return {}; }
};
struct Mutable {
  StepOutput operator()(NetImpl&, const Batch&) { return {}; }
};
constexpr auto generic = [](auto& model, const auto&) -> StepOutput {
  static_assert(std::is_base_of_v<torch::nn::Module, std::remove_reference_t<decltype(model)>>);
  return {};
};

template <class Step, class M, class B>
constexpr bool has_signature() {
  using Signature = lockstep::detail::StepSignature<Step>;
  return Signature::known && std::is_same_v<typename Signature::Model, M> &&
         std::is_same_v<typename Signature::Batch, B>;
}

// Programs with wrong Steps are in tests/compile.
static_assert(check_step<decltype(&function), NetImpl, Batch>());
static_assert(check_step<decltype(&by_value), NetImpl, Batch>());
static_assert(check_step<Callable, NetImpl, Batch>());
static_assert(check_step<Mutable, NetImpl, Batch>());
static_assert(check_step<decltype(generic), NetImpl, Batch>());
static_assert(check_step<Callable, Derived, Batch>());

static_assert(has_signature<decltype(&function), NetImpl, Batch>());
static_assert(has_signature<decltype(&by_value), NetImpl, Batch>());
static_assert(has_signature<Callable, NetImpl, Batch>());
static_assert(has_signature<Mutable, NetImpl, Batch>());
static_assert(!lockstep::detail::StepSignature<decltype(generic)>::known);

static_assert(std::is_same_v<module_t<Net>, NetImpl>);
static_assert(std::is_same_v<module_t<const Net&>, NetImpl>);
static_assert(std::is_same_v<module_t<std::shared_ptr<Derived>&>, Derived>);
static_assert(std::is_same_v<module_t<Derived&>, Derived>);
static_assert(!lockstep::detail::ModuleOf<int>::ok);

}  // namespace

CATCH_TEST_CASE("functions, objects, mutable and generic lambdas are Steps, also for a derived module") {
  NetImpl net;
  Derived derived;
  const Batch batch;
  Mutable counting;
  CATCH_CHECK(function(net, batch).num_samples.number() < 0);
  CATCH_CHECK(by_value(net, batch).num_samples.number() < 0);
  CATCH_CHECK(counting(net, batch).num_samples.number() < 0);
  CATCH_CHECK(Callable()(derived, batch).num_samples.number() < 0);
  CATCH_CHECK(generic(net, batch).num_samples.number() < 0);
}

namespace {

/// Moves batches and runs backward passes itself.
struct Replacing {
  StepOutput operator()(test::OneWeight& model, const at::Tensor& batch) {
    seen.push_back(batch.item<double>());
    return {.loss = model.w * batch, .num_samples = batch.numel()};
  }
  [[nodiscard]] at::Tensor to_device(const at::Tensor& batch, const Placement& where) const {
    return batch.to(where.device) * 10;
  }
  void backward(const at::Tensor& loss) { (loss * 2).backward(); }

  test::Tape& seen;
};

}  // namespace

CATCH_TEST_CASE("a Step's own to_device and backward take the places of the usual ones, in training and evaluation") {
  Accelerator accelerator({.precision = Precision::fp64, .gradient_accumulation_steps = 2, .device = at::kCPU});
  test::OneWeight model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
  auto source = test::batches({{1}, {3}});
  auto set = test::batches({{5}});
  test::Tape trained;
  test::Tape evaluated;
  Evaluator evaluator(accelerator, {{"validation", set}}, Replacing{evaluated});
  Trainer trainer(accelerator, model, optimizer, source, Replacing{trained}, {.evaluator = &evaluator});
  trainer.train({.epochs = 1});
  CATCH_CHECK(trained == test::Tape{10, 30});
  CATCH_CHECK(evaluated == test::Tape{50});
  // The gradient is twice the mean of 10 and 30.
  CATCH_CHECK(model.value() == -40);
}

CATCH_TEST_CASE("evaluation has a Step of its own, with other metrics and another way to move batches") {
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  test::OneWeight model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
  auto source = test::batches({{2}});
  auto set = test::batches({{5}});
  test::Tape evaluated;
  Evaluator evaluator(accelerator, {{"validation", set}}, Replacing{evaluated});
  Trainer trainer(accelerator, model, optimizer, source, test::OneWeightStep<at::Tensor>(test::follow),
                  {.evaluator = &evaluator});
  trainer.train({.epochs = 1});
  CATCH_CHECK(model.value() == 2);
  CATCH_CHECK(evaluated == test::Tape{50});
  CATCH_CHECK(trainer.evaluate().at("validation").at("loss") == 100);
}
