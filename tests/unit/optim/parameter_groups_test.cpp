#include "lockstep/optim/parameter_groups.hpp"

#include <limits>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using Names = std::vector<std::string>;

namespace {

Names names(const NamedTensors& parameters) {
  Names result;
  for (const auto& parameter : parameters) result.push_back(parameter.first);
  return result;
}

/// A matrix under two names, a vector, and a frozen matrix.
struct Net : torch::nn::Module {
  Net() {
    matrix = register_parameter("matrix", torch::ones({2, 2}));
    register_parameter("tied", matrix);
    register_parameter("vector", torch::ones({2}));
    register_parameter("frozen", torch::ones({2, 2}), /*requires_grad=*/false);
  }
  at::Tensor matrix;
};

}  // namespace

CATCH_TEST_CASE("trainable parameters are those with a gradient, each once, under its first name") {
  CATCH_CHECK(names(trainable_parameters(Net())) == Names{"matrix", "vector"});
}

CATCH_TEST_CASE("matrices decay, vectors do not") {
  const Net net;
  const auto groups = weight_decay_groups(net, 0.05);
  CATCH_REQUIRE(groups.size() == 2);
  CATCH_CHECK(groups[0].name == "decay");
  CATCH_CHECK(names(groups[0].parameters) == Names{"matrix"});
  CATCH_CHECK(groups[0].weight_decay == 0.05);
  CATCH_CHECK(groups[1].name == "no_decay");
  CATCH_CHECK(names(groups[1].parameters) == Names{"vector"});
  CATCH_CHECK(groups[1].weight_decay == 0);
  CATCH_CHECK(groups[0].parameters[0].second.unsafeGetTensorImpl() == net.matrix.unsafeGetTensorImpl());
}

CATCH_TEST_CASE("no_weight_decay exempts vectors and whatever has one of the parts in its name") {
  const auto exempt = no_weight_decay({"_emb", "norm"});
  const at::Tensor matrix = torch::zeros({2, 2});
  CATCH_CHECK(exempt("token_emb.weight", matrix));
  CATCH_CHECK(exempt("block.0.norm1.weight", matrix));
  CATCH_CHECK_FALSE(exempt("head.weight", matrix));
  CATCH_CHECK(exempt("head.bias", torch::zeros({2})));
  CATCH_CHECK(exempt("scale", torch::zeros({})));
  CATCH_CHECK_FALSE(no_weight_decay({})("token_emb.weight", matrix));
}

CATCH_TEST_CASE("the user's own rule replaces the default one") {
  const auto groups = weight_decay_groups(
      Net(), 0.05, [](const std::string& name, const at::Tensor&) { return name == "matrix"; });
  CATCH_REQUIRE(groups.size() == 2);
  CATCH_CHECK(names(groups[0].parameters) == Names{"vector"});
  CATCH_CHECK(names(groups[1].parameters) == Names{"matrix"});
}

CATCH_TEST_CASE("an empty group is left out") {
  const auto groups =
      weight_decay_groups(Net(), 0.05, [](const std::string&, const at::Tensor&) { return true; });
  CATCH_REQUIRE(groups.size() == 1);
  CATCH_CHECK(groups[0].name == "no_decay");
}

CATCH_TEST_CASE("a weight decay that cannot work and a module without parameters are refused") {
  const auto id = [](const torch::nn::Module& module, double weight_decay) {
    return test::thrown_id<ConfigError>([&] { (void)weight_decay_groups(module, weight_decay); });
  };
  CATCH_CHECK(id(Net(), -0.1) == "invalid-settings");
  CATCH_CHECK(id(Net(), std::numeric_limits<double>::quiet_NaN()) == "invalid-settings");
  CATCH_CHECK(id(torch::nn::Module(), 0.1) == "no-trainable-parameter");
}
