#include "lockstep/optim/grouped_optimizer.hpp"

#include "support/catch.hpp"

using namespace lockstep;

namespace {

ParameterGroups two_groups() {
  return {{.name = "decay", .parameters = {{"w", torch::ones({2}).requires_grad_()}}, .weight_decay = 0.05},
          {.name = "no_decay", .parameters = {{"b", torch::ones({1}).requires_grad_()}}, .weight_decay = 0}};
}

template <class Options>
const Options& options_of(torch::optim::Optimizer& optimizer, std::size_t group) {
  return static_cast<const Options&>(optimizer.param_groups()[group].options());
}

}  // namespace

CATCH_TEST_CASE("a group without weight decay stays without, whatever the optimizer's default") {
  using Options = torch::optim::AdamWOptions;
  GroupedOptimizer<torch::optim::AdamW> optimizer(two_groups(), Options(1e-4).weight_decay(0.05));
  CATCH_CHECK(options_of<Options>(optimizer, 0).weight_decay() == 0.05);
  CATCH_CHECK(options_of<Options>(optimizer, 1).weight_decay() == 0);

  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  optimizer.step();
  CATCH_CHECK(optimizer.param_groups()[0].params()[0][0].item<float>() == Approx(1 - 1e-4 * 0.05));
  CATCH_CHECK(optimizer.param_groups()[1].params()[0].item<float>() == 1.0f);
}

CATCH_TEST_CASE("a group's own rate stays, also one that equals the default of a fresh options object") {
  using Options = torch::optim::AdamWOptions;
  auto groups = two_groups();
  groups[0].lr = 1e-3;  // what AdamWOptions() holds
  GroupedOptimizer<torch::optim::AdamW> optimizer(groups,
                                                  Options(5e-4).betas({0.8, 0.9}).eps(1e-6).amsgrad(true));
  CATCH_CHECK(options_of<Options>(optimizer, 0).lr() == 1e-3);
  CATCH_CHECK(options_of<Options>(optimizer, 1).lr() == 5e-4);
  for (std::size_t group : {0, 1}) {
    CATCH_CHECK(options_of<Options>(optimizer, group).betas() == std::make_tuple(0.8, 0.9));
    CATCH_CHECK(options_of<Options>(optimizer, group).eps() == 1e-6);
    CATCH_CHECK(options_of<Options>(optimizer, group).amsgrad());
  }
}

CATCH_TEST_CASE("groups keep their names and parameters, with any optimizer that has weight decay") {
  const auto groups = two_groups();
  GroupedOptimizer<torch::optim::SGD> sgd(groups, torch::optim::SGDOptions(0.1).momentum(0.9));
  GroupedOptimizer<torch::optim::Adam> adam(groups, torch::optim::AdamOptions(0.1));
  GroupedOptimizer<torch::optim::RMSprop> rmsprop(groups, torch::optim::RMSpropOptions(0.1));
  GroupedOptimizer<torch::optim::Adagrad> adagrad(groups, torch::optim::AdagradOptions(0.1));
  for (const auto* names :
       {&sgd.group_names(), &adam.group_names(), &rmsprop.group_names(), &adagrad.group_names()}) {
    CATCH_CHECK(*names == std::vector<std::string>{"decay", "no_decay"});
  }
  CATCH_CHECK(options_of<torch::optim::SGDOptions>(sgd, 1).momentum() == 0.9);
  CATCH_CHECK(options_of<torch::optim::SGDOptions>(sgd, 0).weight_decay() == 0.05);
  CATCH_CHECK(sgd.param_groups()[0].params()[0].unsafeGetTensorImpl() ==
              groups[0].parameters[0].second.unsafeGetTensorImpl());
}
