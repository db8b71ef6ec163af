#include "optim/optimizer_adapter.hpp"

#include <functional>

#include "lockstep/base/error.hpp"
#include "lockstep/optim/grouped_optimizer.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using Catch::Matchers::Equals;
using test::thrown_id;

namespace {

/// Adds up gradients and counts steps: state of its own, written as LibTorch's own optimizers write theirs.
class Accumulator : public torch::optim::Optimizer {
 public:
  struct Options : torch::optim::OptimizerCloneableOptions<Options> {
    explicit Options(double rate = 1) : rate(rate) {}
    double get_lr() const override { return rate; }
    void set_lr(const double lr) override { rate = lr; }
    void serialize(torch::serialize::OutputArchive& archive) const override {
      archive.write("rate", c10::IValue(rate));
      if (!note.empty()) archive.write("notes", c10::IValue(c10::List<std::string>({note})));
    }
    void serialize(torch::serialize::InputArchive& archive) override {
      c10::IValue value;
      archive.read("rate", value);
      rate = value.toDouble();
    }
    double rate;
    std::string note;  ///< in a list, which no checkpoint can hold
  };
  struct State : torch::optim::OptimizerCloneableParamState<State> {
    void serialize(torch::serialize::OutputArchive& archive) const override {
      archive.write("steps", c10::IValue(steps));
      archive.write("total", total);
    }
    void serialize(torch::serialize::InputArchive& archive) override {
      c10::IValue value;
      archive.read("steps", value);
      steps = value.toInt();
      archive.read("total", total);
    }
    std::int64_t steps = 0;
    at::Tensor total;
  };

  Accumulator(std::vector<at::Tensor> parameters, Options options)
      : Optimizer(std::vector<torch::optim::OptimizerParamGroup>{std::move(parameters)},
                  std::make_unique<Options>(options)) {}

  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups_) {
      for (auto& parameter : group.params()) {
        if (!parameter.grad().defined()) continue;
        auto& slot = state_[parameter.unsafeGetTensorImpl()];
        if (!slot) slot = std::make_unique<State>();
        auto& own = static_cast<State&>(*slot);
        own.total = own.total.defined() ? own.total + parameter.grad() : parameter.grad().clone();
        parameter.sub_(own.total * (group.options().get_lr() / static_cast<double>(++own.steps)));
      }
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<State, Options>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<State, Options>(archive, *this);
  }
};

using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(const std::vector<at::Tensor>&)>;

struct Kind {
  std::string name;
  MakeOptimizer make;
};

std::vector<Kind> all_kinds() {
  using namespace torch::optim;
  using Parameters = std::vector<at::Tensor>;
  return {
      {"SGD",
       [](const Parameters& p) {
         return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9).nesterov(true));
       }},
      {"Adam",
       [](const Parameters& p) { return std::make_unique<Adam>(p, AdamOptions(0.1).weight_decay(0.01)); }},
      {"AdamW",
       [](const Parameters& p) {
         return std::make_unique<AdamW>(p, AdamWOptions(0.1).betas({0.8, 0.95}));
       }},
      {"AdamW",
       [](const Parameters& p) { return std::make_unique<AdamW>(p, AdamWOptions(0.1).amsgrad(true)); }},
      {"RMSprop",
       [](const Parameters& p) {
         return std::make_unique<RMSprop>(p, RMSpropOptions(0.1).momentum(0.5).centered(true));
       }},
      {"Adagrad",
       [](const Parameters& p) { return std::make_unique<Adagrad>(p, AdagradOptions(0.1).lr_decay(0.1)); }},
      {"Accumulator",
       [](const Parameters& p) { return std::make_unique<Accumulator>(p, Accumulator::Options(0.1)); }},
  };
}

/// Parameters `weight` [2, 2], `bias` [2] and `unused` [1], which never gets a gradient.
struct Parameters {
  /// `reversed` makes them in the other order, so that their addresses have another order too.
  explicit Parameters(bool reversed = false) {
    const auto make = [](at::IntArrayRef shape) { return torch::ones(shape).requires_grad_(); };
    if (reversed) {
      unused = make({1});
      bias = make({2});
      weight = make({2, 2});
    } else {
      weight = make({2, 2});
      bias = make({2});
      unused = make({1});
    }
  }

  [[nodiscard]] std::vector<at::Tensor> all() const { return {weight, bias, unused}; }
  [[nodiscard]] NamedTensors named() const {
    return {{"weight", weight}, {"bias", bias}, {"unused", unused}};
  }

  void step(OptimizerAdapter& adapter, int number) {
    adapter.arena().open_window();
    weight.mutable_grad() = torch::tensor({{1.0f, -2.0f}, {0.5f, 3.0f}}) / number;
    bias.mutable_grad() = torch::tensor({-1.0f, 0.25f}) * number;
    adapter.arena().after_backward();
    adapter.arena().close_window();
    adapter.step({});
  }

  void copy_from(const Parameters& other) {
    const torch::NoGradGuard no_grad;
    weight.copy_(other.weight);
    bias.copy_(other.bias);
  }

  at::Tensor weight, bias, unused;
};

}  // namespace

CATCH_TEST_CASE(
    "an optimizer with restored state goes on bit for bit, whatever the addresses of its parameters") {
  for (const auto& kind : all_kinds()) {
    CATCH_INFO(kind.name);
    Parameters whole;
    const auto whole_optimizer = kind.make(whole.all());
    OptimizerAdapter saving(*whole_optimizer, whole.named());
    whole.step(saving, 1);
    whole.step(saving, 2);
    auto saved = saving.state();
    // What a checkpoint file would do to it.
    saved.description = nlohmann::json::parse(saved.description.dump());
    for (auto& tensor : saved.tensors) tensor.second = tensor.second.clone();

    Parameters resumed(/*reversed=*/true);
    resumed.copy_from(whole);
    const auto resumed_optimizer = kind.make(resumed.all());
    OptimizerAdapter loading(*resumed_optimizer, resumed.named());
    CATCH_CHECK(loading.misfits(saved).empty());
    loading.load(saved);
    CATCH_CHECK(sha256(loading.state().tensors) == sha256(saved.tensors));
    CATCH_CHECK(loading.state().description == saved.description);

    for (const int number : {3, 4}) {
      whole.step(saving, number);
      resumed.step(loading, number);
      CATCH_CHECK(torch::equal(resumed.weight, whole.weight));
      CATCH_CHECK(torch::equal(resumed.bias, whole.bias));
    }
    CATCH_CHECK(resumed.unused.item<float>() == 1.0f);
  }
}

CATCH_TEST_CASE("loading an earlier state forgets the later one, of parameters not stepped then too") {
  Parameters parameters;
  torch::optim::Adam optimizer(parameters.all(), torch::optim::AdamOptions(0.1));
  OptimizerAdapter adapter(optimizer, parameters.named());
  const auto before = adapter.state();
  parameters.step(adapter, 1);
  CATCH_REQUIRE(optimizer.state().size() == 2);
  adapter.load(before);
  CATCH_CHECK(optimizer.state().empty());
}

CATCH_TEST_CASE("state is keyed by parameter name and field") {
  Parameters parameters;
  torch::optim::AdamW optimizer(parameters.all(), torch::optim::AdamWOptions(0.1));
  OptimizerAdapter adapter(optimizer, parameters.named());
  parameters.step(adapter, 1);
  const auto state = adapter.state();
  std::vector<std::string> names;
  for (const auto& tensor : state.tensors) names.push_back(tensor.first);
  std::sort(names.begin(), names.end());
  CATCH_CHECK(names == std::vector<std::string>{"bias/exp_avg", "bias/exp_avg_sq", "weight/exp_avg",
                                                "weight/exp_avg_sq"});
  CATCH_CHECK(state.description.at("kind") == "AdamW");
  CATCH_CHECK(state.description.at("state").at("weight").at("step") == 1);
  CATCH_CHECK_FALSE(state.description.at("state").contains("unused"));
  CATCH_CHECK(state.description.at("groups").at(0).at("parameters") ==
              nlohmann::json{"weight", "bias", "unused"});
}

CATCH_TEST_CASE(
    "the kind of an optimizer is its class, also behind named groups and for a class of the user's") {
  for (const auto& kind : all_kinds()) {
    Parameters parameters;
    const auto optimizer = kind.make(parameters.all());
    CATCH_CHECK_THAT(OptimizerAdapter(*optimizer, parameters.named()).kind(), Contains(kind.name));
  }
  Parameters parameters;
  GroupedOptimizer<torch::optim::SGD> grouped({{.name = "all", .parameters = parameters.named()}},
                                              torch::optim::SGDOptions(0.1));
  CATCH_CHECK(OptimizerAdapter(grouped, parameters.named()).kind() == "SGD");
}

CATCH_TEST_CASE("rates are the base rate of each group times one factor") {
  Parameters parameters;
  GroupedOptimizer<torch::optim::SGD> optimizer(
      {{.name = "slow", .parameters = {{"weight", parameters.weight}}, .lr = 0.5},
       {.name = "fast", .parameters = {{"bias", parameters.bias}}}},
      torch::optim::SGDOptions(2));
  OptimizerAdapter adapter(optimizer, parameters.named());
  CATCH_CHECK(adapter.group_names() == std::vector<std::string>{"slow", "fast"});
  adapter.set_rates(0.5);
  CATCH_CHECK(adapter.rate(0) == 0.25);
  CATCH_CHECK(adapter.rate(1) == 1.0);
  CATCH_CHECK(adapter.base_lr(0) == 0.5);
  adapter.set_base_lr(1, 3);
  adapter.set_rates(1);
  CATCH_CHECK(adapter.rate(0) == 0.5);
  CATCH_CHECK(adapter.rate(1) == 3.0);
  CATCH_CHECK(optimizer.param_groups()[1].options().get_lr() == 3.0);
}

CATCH_TEST_CASE("groups without names are numbered") {
  Parameters parameters;
  torch::optim::SGD optimizer({torch::optim::OptimizerParamGroup({parameters.weight}),
                               torch::optim::OptimizerParamGroup({parameters.bias})},
                              torch::optim::SGDOptions(1));
  CATCH_CHECK(OptimizerAdapter(optimizer, parameters.named()).group_names() ==
              std::vector<std::string>{"group_0", "group_1"});
}

CATCH_TEST_CASE("an optimizer that does not fit the model is refused") {
  Parameters parameters, others;
  const auto id = [&](std::vector<at::Tensor> trained) {
    return thrown_id<ConfigError>([&] {
      torch::optim::SGD optimizer(std::move(trained), torch::optim::SGDOptions(1));
      OptimizerAdapter adapter(optimizer, parameters.named());
    });
  };
  CATCH_CHECK(id({parameters.weight, others.weight}) == "foreign-parameter");
  CATCH_CHECK(id({parameters.weight, parameters.weight}) == "duplicate-parameter");
  CATCH_CHECK(id({}) == "no-trainable-parameter");
  torch::optim::SGD two_groups({torch::optim::OptimizerParamGroup({parameters.weight}),
                                torch::optim::OptimizerParamGroup({parameters.weight})},
                               torch::optim::SGDOptions(1));
  CATCH_CHECK_THROWS_WITH(OptimizerAdapter(two_groups, parameters.named()),
                          Contains("weight") && Contains("groups 0 and 1"));
}

CATCH_TEST_CASE("what of a saved state does not fit is said, a sentence for each difference") {
  Parameters parameters;
  torch::optim::SGD sgd(parameters.all(), torch::optim::SGDOptions(1).momentum(0.9));
  OptimizerAdapter adapter(sgd, parameters.named());
  parameters.step(adapter, 1);
  const auto saved = adapter.state();
  CATCH_CHECK(adapter.misfits(saved).empty());

  torch::optim::Adam adam(parameters.all(), torch::optim::AdamOptions(1));
  CATCH_CHECK_THAT(OptimizerAdapter(adam, parameters.named()).misfits(saved),
                   Equals(std::vector<std::string>{"the optimizer was SGD and is Adam now."}));

  torch::optim::SGD two_groups({torch::optim::OptimizerParamGroup({parameters.bias}),
                                torch::optim::OptimizerParamGroup({parameters.weight})},
                               torch::optim::SGDOptions(1));
  const auto problems = OptimizerAdapter(two_groups, parameters.named()).misfits(saved);
  CATCH_REQUIRE(problems.size() == 2);
  CATCH_CHECK_THAT(problems[0], Contains("1 parameter groups and has 2 now"));
  CATCH_CHECK_THAT(problems[1], Contains("group 0"));

  auto resized = saved;
  for (auto& [name, tensor] : resized.tensors) {
    if (name == "bias/momentum_buffer") tensor = torch::zeros({3});
  }
  const auto shape_problems = adapter.misfits(resized);
  CATCH_REQUIRE(shape_problems.size() == 1);
  CATCH_CHECK_THAT(shape_problems[0], Contains("bias/momentum_buffer had shape [3] and has [2] now"));
}

CATCH_TEST_CASE("what no checkpoint can hold is refused by name when it is saved") {
  Parameters parameters;
  Accumulator::Options options;
  options.note = "text";
  Accumulator optimizer(parameters.all(), options);
  const OptimizerAdapter adapter(optimizer, parameters.named());
  CATCH_CHECK(thrown_id<CheckpointError>([&] { (void)adapter.state(); }) == "optimizer-state-not-saved");
  CATCH_CHECK_THROWS_WITH(adapter.state(), Contains("group_0/notes"));
}

namespace {

/// Steps L-BFGS on a parabola of two parameters.
void lbfgs_step(Parameters& parameters, torch::optim::LBFGS& optimizer) {
  optimizer.step([&] {
    optimizer.zero_grad();
    const auto loss = (parameters.weight * parameters.weight).sum() + (parameters.bias - 3).pow(4).sum();
    loss.backward();
    return loss;
  });
}

torch::optim::LBFGSOptions lbfgs_options() {
  return torch::optim::LBFGSOptions(0.5).max_iter(3).history_size(4).line_search_fn(std::string("strong_wolfe"));
}

std::vector<double> values(const Parameters& parameters) {
  const auto all = torch::cat({parameters.weight.flatten(), parameters.bias.flatten()}).detach().to(torch::kDouble);
  return {all.data_ptr<double>(), all.data_ptr<double>() + all.numel()};
}

}  // namespace

CATCH_TEST_CASE("an L-BFGS that takes over a saved state goes on to the bit, history and line search included") {
  Parameters first;
  torch::optim::LBFGS optimizer(first.all(), lbfgs_options());
  const auto begin = values(first);
  OptimizerAdapter adapter(optimizer, first.named(), ParameterLayout::separate);
  for (int i = 0; i < 2; ++i) lbfgs_step(first, optimizer);
  const auto saved = adapter.state();

  Parameters second;
  second.copy_from(first);
  torch::optim::LBFGS other(second.all(), torch::optim::LBFGSOptions(1));
  OptimizerAdapter loaded(other, second.named(), ParameterLayout::separate);
  CATCH_CHECK(loaded.misfits(saved).empty());
  loaded.load(saved);
  for (int i = 0; i < 2; ++i) {
    lbfgs_step(first, optimizer);
    lbfgs_step(second, other);
  }
  CATCH_CHECK(values(first) == values(second));
  CATCH_CHECK(values(first) != begin);
}

CATCH_TEST_CASE("a restore point takes an optimizer's state back, as often as asked") {
  const auto follow = [](Parameters& parameters, torch::optim::Optimizer& optimizer, const std::function<void()>& step) {
    OptimizerAdapter adapter(optimizer, parameters.named(), ParameterLayout::separate);
    step();
    Parameters before;
    before.copy_from(parameters);
    const auto go_back = adapter.restore_point();
    std::vector<std::vector<double>> ends;
    for (int i = 0; i < 3; ++i) {
      step();
      step();
      ends.push_back(values(parameters));
      go_back();
      parameters.copy_from(before);
    }
    CATCH_CHECK(ends[0] != values(before));
    CATCH_CHECK(ends[0] == ends[1]);
    CATCH_CHECK(ends[0] == ends[2]);
  };
  Parameters first;
  torch::optim::LBFGS lbfgs(first.all(), lbfgs_options());
  follow(first, lbfgs, [&] { lbfgs_step(first, lbfgs); });
  Parameters second;
  torch::optim::Adam adam(second.all(), torch::optim::AdamOptions(0.1));
  follow(second, adam, [&] {
    second.weight.mutable_grad() = second.weight.detach().clone();
    second.bias.mutable_grad() = second.bias.detach().clone();
    adam.step();
  });
}
