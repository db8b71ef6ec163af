#include "lockstep/tensors/module_state.hpp"

#include "support/catch.hpp"

using namespace lockstep;

namespace {

struct Net : torch::nn::Module {
  Net()
      : norm(register_module("norm", torch::nn::BatchNorm1d(2))),
        linear(register_module("linear", torch::nn::Linear(2, 1))) {}
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear linear;
};

std::vector<std::string> names(const NamedTensors& tensors) {
  std::vector<std::string> result;
  for (const auto& tensor : tensors) result.push_back(tensor.first);
  return result;
}

}  // namespace

CATCH_TEST_CASE("a module's state is named as in Python's state_dict") {
  // In Python: the same module's state_dict(), parameters first.
  CATCH_CHECK(names(module_state(Net())) ==
              std::vector<std::string>{"norm.weight", "norm.bias", "linear.weight", "linear.bias",
                                       "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"});
}

CATCH_TEST_CASE("a module's state shares its storage and has no graph") {
  Net net;
  const auto state = module_state(net);
  CATCH_CHECK_FALSE(state[2].second.requires_grad());
  state[2].second.fill_(7);
  CATCH_CHECK(net.linear->weight.min().item<float>() == 7.0f);
}

CATCH_TEST_CASE("a tensor with two names appears under both, an undefined buffer under none") {
  struct Shared : torch::nn::Module {
    Shared() {
      const auto tensor = register_parameter("a", torch::ones({1}));
      register_parameter("b", tensor);
      register_buffer("none", at::Tensor());
    }
  };
  const auto state = module_state(Shared());
  CATCH_CHECK(names(state) == std::vector<std::string>{"a", "b"});
  CATCH_CHECK(state[0].second.data_ptr() == state[1].second.data_ptr());
}

CATCH_TEST_CASE("placing a module changes floating types only, and no parameter's identity") {
  Net net;
  const auto* weight = net.linear->weight.unsafeGetTensorImpl();
  const auto values = net.linear->weight.detach().to(torch::kDouble);
  place_module(net, at::kCPU, torch::kDouble);
  CATCH_CHECK(net.linear->weight.unsafeGetTensorImpl() == weight);
  CATCH_CHECK(net.linear->weight.is_leaf());
  CATCH_CHECK(torch::equal(net.linear->weight.detach(), values));
  CATCH_CHECK(net.norm->running_mean.scalar_type() == torch::kDouble);
  CATCH_CHECK(net.norm->num_batches_tracked.scalar_type() == torch::kLong);
}

CATCH_TEST_CASE("an optimizer built before a module was placed still trains it") {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(1));
  place_module(net, at::kCPU, torch::kDouble);
  const auto before = net.linear->bias.detach().clone();
  net.linear(torch::ones({1, 2}, torch::kDouble)).sum().backward();
  optimizer.step();
  CATCH_CHECK(torch::equal(net.linear->bias.detach(), before - 1));
}
