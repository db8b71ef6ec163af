#include "lockstep/loop/step.hpp"

#include "support/catch.hpp"

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
