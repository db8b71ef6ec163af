#include "lockstep/optim/optimizer.hpp"

#include "lockstep/optim/adamw.hpp"
#include "lockstep/optim/sgd.hpp"
#include "lockstep/optim/weight_average.hpp"
#include "support/catch.hpp"

using namespace lockstep;

namespace {

/// A rule of one's own: the sign of a running mean of the gradients, a rate for each group.
class SignSGD final : public Optimizer {
 public:
  explicit SignSGD(const ParameterGroups& groups)
      : Optimizer(groups, std::vector<double>(groups.size(), 0.25)) {}

  [[nodiscard]] std::string kind() const override { return "SignSGD"; }
  [[nodiscard]] std::vector<std::string> state_names(std::size_t) const override { return {"mean"}; }
  [[nodiscard]] OptionValues options(std::size_t) const override { return {{"decay", decay_}}; }
  void set_option(std::size_t, const std::string&, const OptionValue& value) override {
    decay_ = std::get<double>(value);
  }
  void apply(const UpdateRange& range) override {
    const auto& mean = range.state[0];
    mean.mul_(decay_).add_(range.divisor ? range.gradients / *range.divisor : range.gradients, 1 - decay_);
    range.parameters.add_(mean.sign(), -range.lr);
  }

 private:
  double decay_ = 0.5;
};

/// Five parameters in two groups: odd sizes, one transposed, one in double, one of half type.
struct Model {
  Model() {
    torch::manual_seed(11);
    groups = {{.name = "a",
               .parameters = {{"odd", torch::randn({17}).requires_grad_()},
                              {"transposed", torch::randn({7, 5}).t().requires_grad_()}},
               .weight_decay = 0.1},
              {.name = "b",
               .parameters = {{"scalar", torch::randn({}).requires_grad_()},
                              {"double", torch::randn({4}, torch::kDouble).requires_grad_()},
                              {"half", torch::randn({9}).to(at::kBFloat16).requires_grad_()}},
               .weight_decay = 0}};
  }

  [[nodiscard]] std::vector<NamedTensors> parameters() const {
    return {groups[0].parameters, groups[1].parameters};
  }
  [[nodiscard]] at::Tensor operator[](const std::string& name) const {
    for (const auto& group : groups) {
      for (const auto& [own, parameter] : group.parameters) {
        if (own == name) return parameter;
      }
    }
    throw std::out_of_range(name);
  }

  /// A gradient for each, of small fractions; none for `without`.
  void backward(std::int64_t update, const std::string& without = "") const {
    for (const auto& group : groups) {
      for (const auto& [name, parameter] : group.parameters) {
        if (name == without) continue;
        const auto values =
            torch::arange(parameter.numel(), torch::kDouble).mul(5).add(update * 3).remainder(11).sub(5);
        (parameter * values.div(8).view(parameter.sizes()).to(parameter.scalar_type())).sum().backward();
      }
    }
  }

  ParameterGroups groups;
};

/// As a Trainer updates.
void update(ParameterArena& arena, Optimizer& optimizer, const Model& model, std::int64_t update,
            const std::string& without = "", const UpdatePass& pass = {}) {
  arena.open_window();
  model.backward(update, without);
  arena.after_backward();
  arena.close_window();
  optimizer.update(pass);
}

/// As a loop of one's own does.
void step(Optimizer& optimizer, const Model& model, std::int64_t update, const std::string& without = "") {
  optimizer.zero_grad();
  model.backward(update, without);
  optimizer.step();
}

NamedTensors copied(const NamedTensors& tensors) {
  NamedTensors result;
  for (const auto& [name, tensor] : tensors) result.emplace_back(name, tensor.detach().clone());
  return result;
}

void check_equal(const NamedTensors& ours, const NamedTensors& expected) {
  CATCH_REQUIRE(ours.size() == expected.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CATCH_CAPTURE(ours[i].first);
    CATCH_CHECK(ours[i].first == expected[i].first);
    CATCH_CHECK(ours[i].second.scalar_type() == expected[i].second.scalar_type());
    CATCH_CHECK(torch::equal(ours[i].second, expected[i].second));
  }
}

void check_equal(const Model& ours, const Model& expected) {
  for (std::size_t i = 0; i < 2; ++i) check_equal(ours.groups[i].parameters, expected.groups[i].parameters);
}

at::Tensor field(const Optimizer& optimizer, const std::string& name) {
  for (const auto& [own, tensor] : optimizer.state()) {
    if (own == name) return tensor;
  }
  return {};
}

}  // namespace

CATCH_TEST_CASE(
    "a rule of one's own gives the same in a flat arena, a separate one and a loop of one's own") {
  Model by_hand;
  Model separate;
  Model flat;
  SignSGD steps(by_hand.groups);
  SignSGD of_separate(separate.groups);
  SignSGD of_flat(flat.groups);
  ParameterArena separate_arena(separate.parameters(), ParameterLayout::separate);
  ParameterArena flat_arena(flat.parameters(), ParameterLayout::flat);
  of_separate.attach(separate_arena);
  of_flat.attach(flat_arena);
  const auto before = by_hand["odd"].detach().clone();
  for (std::int64_t i = 0; i < 6; ++i) {
    const std::string without = i % 3 == 1 ? "transposed" : i % 3 == 2 ? "odd" : "";
    step(steps, by_hand, i, without);
    update(separate_arena, of_separate, separate, i, without);
    update(flat_arena, of_flat, flat, i, without, {.clear_gradients = i % 2 == 0});
    if (i == 0) {
      // Rate 0.25 times the sign of the first gradient, -5/8, 0, 5/8, -1/8, ...
      CATCH_CHECK(torch::equal(by_hand["odd"].narrow(0, 0, 4),
                               before.narrow(0, 0, 4) + torch::tensor({0.25f, 0.0f, -0.25f, 0.25f})));
    }
  }
  CATCH_CHECK(field(of_flat, "transposed/step").item<std::int64_t>() == 4);
  check_equal(separate, by_hand);
  check_equal(flat, by_hand);
  check_equal(of_separate.state(), steps.state());
  check_equal(of_flat.state(), steps.state());
}

CATCH_TEST_CASE("a parameter without a gradient keeps value, state and its number of updates") {
  Model model;
  AdamW optimizer(model.groups, {.lr = 0.1});
  ParameterArena arena(model.parameters(), ParameterLayout::flat);
  optimizer.attach(arena);
  update(arena, optimizer, model, 0, "odd");
  CATCH_CHECK_FALSE(field(optimizer, "odd/step").defined());
  CATCH_CHECK(torch::equal(model["odd"], Model()["odd"]));
  update(arena, optimizer, model, 1);
  const auto value = model["odd"].detach().clone();
  const auto moment = field(optimizer, "odd/exp_avg").clone();
  update(arena, optimizer, model, 2, "odd");
  CATCH_CHECK(torch::equal(model["odd"], value));
  CATCH_CHECK(torch::equal(field(optimizer, "odd/exp_avg"), moment));
  CATCH_CHECK(field(optimizer, "odd/step").item<std::int64_t>() == 1);
  CATCH_CHECK(field(optimizer, "transposed/step").item<std::int64_t>() == 3);
}

CATCH_TEST_CASE("the state goes from a flat arena to separate storage and back, bit for bit") {
  Model model;
  AdamW optimizer(model.groups, {.lr = 0.1, .amsgrad = true});
  {
    ParameterArena arena(model.parameters(), ParameterLayout::flat);
    optimizer.attach(arena);
    for (std::int64_t i = 0; i < 3; ++i) update(arena, optimizer, model, i, i == 1 ? "odd" : "");
    const auto state = copied(optimizer.state());
    // Four fields in fp32 and double; half parameters have their master weights besides.
    CATCH_CHECK(state.size() == 5 * 4 + 1);
    CATCH_CHECK(field(optimizer, "half/master").scalar_type() == at::kFloat);
    CATCH_CHECK(field(optimizer, "transposed/exp_avg").strides() == model["transposed"].strides());

    Model other;
    AdamW separate(other.groups, {.lr = 0.1, .amsgrad = true});
    separate.load_state(state);
    check_equal(separate.state(), state);
    ParameterArena other_arena(other.parameters(), ParameterLayout::flat);
    separate.attach(other_arena);
    check_equal(separate.state(), state);
    optimizer.load_state(copied(separate.state()));
    check_equal(optimizer.state(), state);

    optimizer.detach(arena);
    check_equal(optimizer.state(), state);
  }
}

CATCH_TEST_CASE("after its arena is gone an optimizer steps the module's parameters, with the state it had") {
  Model model;
  Model expected;
  AdamW optimizer(model.groups, {.lr = 0.1});
  AdamW throughout(expected.groups, {.lr = 0.1});
  step(optimizer, model, 0);
  {
    ParameterArena arena(model.parameters(), ParameterLayout::flat);
    optimizer.attach(arena);
    update(arena, optimizer, model, 1);
    optimizer.detach(arena);
  }
  step(optimizer, model, 2);
  for (std::int64_t i = 0; i < 3; ++i) step(throughout, expected, i);
  for (const auto* name : {"odd", "transposed", "scalar", "double", "half"}) {
    CATCH_CAPTURE(name);
    CATCH_CHECK(torch::allclose(model[name], expected[name], 1e-6, 1e-6));
    CATCH_CHECK(field(optimizer, std::string(name) + "/step").item<std::int64_t>() == 3);
  }
}

CATCH_TEST_CASE("step() works while an arena holds the parameters, as without it") {
  Model model;
  Model expected;
  SignSGD optimizer(model.groups);
  SignSGD without(expected.groups);
  ParameterArena arena(model.parameters(), ParameterLayout::flat);
  optimizer.attach(arena);
  for (std::int64_t i = 0; i < 3; ++i) {
    step(optimizer, model, i, i == 1 ? "odd" : "");
    step(without, expected, i, i == 1 ? "odd" : "");
  }
  check_equal(model, expected);
  check_equal(optimizer.state(), without.state());
  update(arena, optimizer, model, 3);
  step(without, expected, 3);
  check_equal(model, expected);
}

CATCH_TEST_CASE("parameters whose storage was replaced between steps are stepped where they are now") {
  Model model;
  SignSGD optimizer(model.groups);
  step(optimizer, model, 0);
  for (const auto& group : model.groups) {
    for (const auto& [name, parameter] : group.parameters) parameter.set_data(torch::zeros_like(parameter));
  }
  optimizer.zero_grad();
  for (const auto& group : model.groups) {
    for (const auto& [name, parameter] : group.parameters) (parameter * 8).sum().backward();
  }
  optimizer.step();
  for (const auto& group : model.groups) {
    for (const auto& [name, parameter] : group.parameters) {
      CATCH_CAPTURE(name);
      CATCH_CHECK(torch::equal(parameter, torch::full_like(parameter, -0.25)));
    }
  }
}

CATCH_TEST_CASE("master weights carry what half parameters cannot, and follow whoever writes those") {
  const auto half = torch::ones({2}, at::kBFloat16).requires_grad_();
  const ParameterGroups groups = {{.name = "all", .parameters = {{"half", half}}}};
  SGD optimizer(groups, {.lr = 1});
  ParameterArena arena({groups[0].parameters}, ParameterLayout::flat);
  optimizer.attach(arena);
  const auto move = [&](float gradient) {
    arena.open_window();
    (half * gradient).sum().backward();
    arena.after_backward();
    arena.close_window();
    optimizer.update({});
  };
  // Just below 1 the steps of bf16 are 1/256; what is less must not be lost.
  move(0x1p-10f);
  CATCH_CHECK(torch::equal(half.detach().to(at::kFloat), torch::ones({2})));
  CATCH_CHECK(torch::equal(field(optimizer, "half/master"), torch::full({2}, 1 - 0x1p-10f)));
  move(0x1p-9f + 0x1p-10f);
  CATCH_CHECK(torch::equal(half.detach().to(at::kFloat), torch::full({2}, 1 - 0x1p-8f)));

  move(0x1p-11f);
  const torch::NoGradGuard no_grad;
  half[1] = 3;
  optimizer.follow_parameters();
  CATCH_CHECK(torch::equal(field(optimizer, "half/master"), torch::tensor({1 - 0x1p-8f - 0x1p-11f, 3.0f})));
}

CATCH_TEST_CASE("the pass moves the average and clears gradients, as done one after the other") {
  Model model;
  Model expected;
  Adam optimizer(model.groups);
  Adam one_by_one(expected.groups);
  ParameterArena arena(model.parameters(), ParameterLayout::flat);
  ParameterArena plain(expected.parameters(), ParameterLayout::flat);
  optimizer.attach(arena);
  one_by_one.attach(plain);
  const auto all = [](const Model& of) {
    NamedTensors result = of.groups[0].parameters;
    result.insert(result.end(), of.groups[1].parameters.begin(), of.groups[1].parameters.end());
    return result;
  };
  WeightAverage average({.decay = 0.75, .warmup = true}, all(model), &arena);
  WeightAverage separately({.decay = 0.75, .warmup = true}, all(expected), &plain);
  average.start();
  separately.start();
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::string without = i == 2 ? "scalar" : "";
    update(arena, optimizer, model, i, without, {.divisor = 3, .average = &average, .clear_gradients = true});
    for (const auto& buffer : arena.buffers()) {
      CATCH_CHECK(buffer.gradients.count_nonzero().item<std::int64_t>() == 0);
    }
    update(plain, one_by_one, expected, i, without, {.divisor = 3});
    separately.update();
  }
  CATCH_CHECK(average.updates() == 4);
  check_equal(model, expected);
  check_equal(average.named(), separately.named());
}

CATCH_TEST_CASE("a state without master weights takes them from the parameters") {
  Model model;
  SGD optimizer(model.groups);
  optimizer.load_state({{"half/step", torch::tensor(std::int64_t{7})}});
  CATCH_CHECK(torch::equal(field(optimizer, "half/master"), model["half"].detach().to(at::kFloat)));
}

CATCH_TEST_CASE(
    "options reach the rule by name, and state is loaded by name with what is missing begun anew") {
  Model model;
  SignSGD optimizer(model.groups);
  optimizer.set_option(0, "decay", 0.25);
  CATCH_CHECK((optimizer.options(1) == OptionValues{{"decay", 0.25}}));
  CATCH_CHECK(optimizer.state().empty());
  optimizer.load_state({{"odd/mean", torch::ones({17})}, {"odd/step", torch::tensor(std::int64_t{7})}});
  CATCH_CHECK(optimizer.state().size() == 2);
  step(optimizer, model, 0);
  CATCH_CHECK(field(optimizer, "odd/step").item<std::int64_t>() == 8);
  CATCH_CHECK(field(optimizer, "odd/mean")[0].item<float>() == 0.25f * 1 + 0.75f * -0.625f);
  CATCH_CHECK(field(optimizer, "scalar/step").item<std::int64_t>() == 1);
}

CATCH_TEST_CASE("Torch's schedules set the rates, and step() returns the closure's loss") {
  Model model;
  AdamW optimizer(model.groups, {.lr = 0.5});
  CATCH_CHECK(optimizer.group_names() == std::vector<std::string>{"a", "b"});
  torch::optim::StepLR schedule(optimizer, /*step_size=*/1, /*gamma=*/0.5);
  const auto loss = optimizer.step([&] {
    auto sum = model["odd"].sum();
    sum.backward();
    return sum;
  });
  CATCH_CHECK(loss.item<float>() == Model()["odd"].sum().item<float>());
  CATCH_CHECK(field(optimizer, "odd/step").item<std::int64_t>() == 1);
  schedule.step();  // Torch's first call leaves the rate
  schedule.step();
  CATCH_CHECK(optimizer.param_groups()[1].options().get_lr() == 0.25);
  CATCH_CHECK(std::get<double>(optimizer.options(0).at("lr")) == 0.25);
}

CATCH_TEMPLATE_TEST_CASE("an update by the device's decision is the usual one, or changes nothing and is taken back",
                         "", AdamW, Adam, SGD) {
  const auto layout = GENERATE(ParameterLayout::flat, ParameterLayout::separate);
  const auto rule = [](const Model& model) {
    if constexpr (std::is_same_v<TestType, SGD>) {
      return std::make_unique<SGD>(model.groups, SGDOptions{.lr = 0.1, .momentum = 0.9, .dampening = 0.5});
    } else {
      return std::make_unique<TestType>(model.groups, AdamOptions{.lr = 0.1, .amsgrad = true});
    }
  };
  Model decided, usual;
  const auto of_decided = rule(decided), of_usual = rule(usual);
  ParameterArena arena(decided.parameters(), layout), usual_arena(usual.parameters(), layout);
  of_decided->attach(arena);
  of_usual->attach(usual_arena);
  CATCH_CHECK(of_decided->takes_found_inf());
  CATCH_CHECK_FALSE(SignSGD(decided.groups).takes_found_inf());

  const auto by_device = [](bool found_inf) -> DeviceDecision {
    return {.divisor = torch::tensor(3.0, torch::kDouble), .found_inf = torch::tensor(found_inf ? 1.0f : 0.0f)};
  };
  const auto spoilt = by_device(true), finite = by_device(false);
  for (std::int64_t i = 0; i < 4; ++i) {
    const std::string without = i % 2 == 1 ? "odd" : "";
    const NamedTensors state = copied(of_decided->state());
    Model before;
    for (std::size_t g = 0; g < 2; ++g) before.groups[g].parameters = copied(decided.groups[g].parameters);
    update(arena, *of_decided, decided, i + 10, "scalar", {.decision = &spoilt});
    of_decided->take_back();
    check_equal(of_decided->state(), state);
    check_equal(decided, before);

    update(arena, *of_decided, decided, i, without, {.clear_gradients = true, .decision = &finite});
    update(usual_arena, *of_usual, usual, i, without, {.divisor = 3});
    check_equal(decided, usual);
    check_equal(of_decided->state(), of_usual->state());
  }
  of_decided->detach(arena);
  of_usual->detach(usual_arena);
}

CATCH_TEST_CASE("an update of many parameters, which goes piece by piece, is that of one operation after the other") {
  torch::manual_seed(3);
  constexpr std::int64_t size = 1'000'003;
  const NamedTensors parameters{{"many", torch::randn({size}).requires_grad_()}};
  AdamW optimizer({{.name = "all", .parameters = parameters, .weight_decay = 0.1}}, {.lr = 0.01});
  ParameterArena arena({parameters}, ParameterLayout::flat);
  optimizer.attach(arena);
  WeightAverage average({.decay = 0.9}, parameters, &arena);
  average.start();

  const torch::NoGradGuard no_grad;
  const auto start = parameters[0].second.detach().clone();
  const std::vector<at::Tensor> weight{start.clone()}, first{torch::zeros_like(start)},
      second{torch::zeros_like(start)}, count{torch::zeros({})};
  const auto mean = start.clone();
  for (int i = 1; i <= 3; ++i) {
    const std::vector<at::Tensor> gradient{torch::randn_like(start)};
    arena.open_window();
    parameters[0].second.mutable_grad().copy_(gradient[0]);
    arena.after_backward();
    arena.close_window();
    optimizer.update({.divisor = 3, .average = &average, .clear_gradients = true});

    count[0].fill_(i);
    at::_fused_adamw_(weight, gradient, first, second, {}, count, 0.01, 0.9, 0.999, 0.1, 1e-8, false, false,
                      torch::tensor(3.0f));
    mean.lerp_(weight[0], 1 - 0.9);
    CATCH_CHECK(torch::equal(parameters[0].second, weight[0]));
    CATCH_CHECK(torch::equal(average.named()[0].second, mean));
    CATCH_CHECK(parameters[0].second.grad().count_nonzero().item<std::int64_t>() == 0);
  }
}
