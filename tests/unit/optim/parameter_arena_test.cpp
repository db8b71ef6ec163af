#include "lockstep/optim/parameter_arena.hpp"

#include <memory>
#include <sstream>
#include <stdexcept>

#include "lockstep/base/error.hpp"
#include "lockstep/optim/parameter_groups.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;

namespace {

/// An embedding whose weight is the output's too, a convolution that lies channels last, a frozen scale, and
/// a layer that not every batch uses.
struct Net : torch::nn::Module {
  Net() {
    torch::manual_seed(3);
    embedding = register_module("embedding", torch::nn::Embedding(6, 4));
    output = register_parameter("output", embedding->weight);
    convolution = register_module("convolution", torch::nn::Conv2d(2, 3, 2));
    convolution->weight.set_data(convolution->weight.data().contiguous(at::MemoryFormat::ChannelsLast));
    sometimes = register_module("sometimes", torch::nn::Linear(4, 4));
    scale = register_parameter("scale", torch::full({1}, 0.5), /*requires_grad=*/false);
  }

  at::Tensor forward(std::int64_t batch, bool use_sometimes = true) {
    const auto tokens = torch::tensor({batch % 6, (batch + 2) % 6, (batch + 3) % 6});
    auto hidden = embedding(tokens);
    if (use_sometimes) hidden = hidden + sometimes(hidden);
    const auto image = torch::linspace(-1, 1 + static_cast<double>(batch), 18).view({1, 2, 3, 3});
    return torch::linear(hidden, output).square().mean() + convolution(image).square().mean() * scale.sum();
  }

  torch::nn::Embedding embedding{nullptr};
  at::Tensor output;
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::Linear sometimes{nullptr};
  at::Tensor scale;
};

std::vector<NamedTensors> parameters_of(const torch::nn::Module& net) { return {trainable_parameters(net)}; }

/// A Net in an arena, with a window open.
struct InArena {
  explicit InArena(ParameterLayout layout = ParameterLayout::flat) : arena(parameters_of(net), layout) {
    arena.open_window();
  }

  void microbatch(std::int64_t batch, bool use_sometimes = true) {
    net.forward(batch, use_sometimes).backward();
    arena.after_backward();
  }

  Net net;
  ParameterArena arena;
};

/// What a Net in ordinary storage gets from these microbatches.
struct Expected {
  explicit Expected(const std::vector<std::int64_t>& batches) {
    for (const auto batch : batches) net.forward(batch).backward();
  }
  Net net;
};

void check_gradients(const Net& net, const Net& expected) {
  const auto ours = trainable_parameters(net);
  const auto theirs = trainable_parameters(expected);
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CATCH_CAPTURE(ours[i].first);
    CATCH_CHECK(torch::equal(ours[i].second.grad(), theirs[i].second.grad()));
  }
}

/// All of them in the arena's buffer, where its gradient is beside them.
void check_tied(const ParameterArena& arena) {
  for (const auto& member : arena.members()) {
    CATCH_CAPTURE(member.name);
    const auto& block = arena.blocks()[member.block];
    CATCH_CHECK(member.parameter.const_data_ptr() == arena.view(block.parameters, member).const_data_ptr());
    CATCH_REQUIRE(member.parameter.grad().defined());
    CATCH_CHECK(member.parameter.grad().const_data_ptr() ==
                arena.view(block.gradients, member).const_data_ptr());
  }
}

void check_ordinary(const at::Tensor& parameter) {
  CATCH_CHECK(parameter.storage().nbytes() == parameter.nbytes());
  CATCH_CHECK_FALSE(parameter.grad().defined());
}

std::vector<bool> touched(const ParameterArena& arena) {
  std::vector<bool> result;
  for (const auto& member : arena.members()) result.push_back(member.touched);
  return result;
}

std::string refusal(const NamedTensors& parameters) {
  return test::thrown_id<ConfigError>([&] { ParameterArena({parameters}, ParameterLayout::flat); });
}

}  // namespace

CATCH_TEST_CASE("a flat arena keeps identity, values and strides, on 64 bytes, group after group") {
  const NamedTensors first = {{"odd", torch::rand({3}).requires_grad_()},
                              {"double", torch::rand({2}, torch::kDouble).requires_grad_()}};
  const NamedTensors second = {
      {"transposed", torch::rand({7, 5}).t().requires_grad_()},
      {"half", torch::rand({4}).to(at::kBFloat16).requires_grad_()},
      {"channels_last",
       torch::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_()},
      {"scalar", torch::tensor(2.0f).requires_grad_()},
      {"empty", torch::rand({0, 3}).requires_grad_()}};
  std::vector<at::Tensor> values;
  for (const auto& group : {first, second}) {
    for (const auto& [name, parameter] : group) values.push_back(parameter.detach().clone());
  }
  const std::vector<std::vector<std::int64_t>> strides = {{1}, {1}, {1, 5}, {1}, {60, 1, 15, 3}, {}, {3, 1}};

  const ParameterArena arena({first, second}, ParameterLayout::flat);

  std::size_t i = 0;
  for (const auto& group : {first, second}) {
    for (const auto& [name, parameter] : group) {
      CATCH_CAPTURE(name);
      CATCH_CHECK(torch::equal(parameter, values[i]));
      CATCH_CHECK(parameter.strides() == strides[i]);
      CATCH_CHECK(parameter.grad().strides() == strides[i++]);
      CATCH_CHECK(reinterpret_cast<std::uintptr_t>(parameter.storage().data()) % 64 == 0);
      CATCH_CHECK(parameter.storage_offset() * parameter.element_size() % 64 == 0);
      CATCH_CHECK((parameter.is_leaf() && parameter.requires_grad()));
    }
  }
  check_tied(arena);
  std::vector<std::string> order;
  for (const auto& member : arena.members()) order.push_back(member.name);
  CATCH_CHECK(order == std::vector<std::string>{"odd", "transposed", "channels_last", "scalar", "empty",
                                                "double", "half"});
  CATCH_REQUIRE(arena.blocks().size() == 4);
  CATCH_CHECK(arena.blocks()[1].group == 1);
  CATCH_CHECK((arena.blocks()[1].first == 1 && arena.blocks()[1].last == 5));
  CATCH_CHECK((arena.blocks()[0].offset == 0 && arena.blocks()[1].offset == 16));
  CATCH_REQUIRE(arena.buffers().size() == 3);
  const auto total = values[0].sum() + values[2].sum() + values[4].sum() + values[5];
  CATCH_CHECK(arena.buffers()[0].parameters.sum().item<float>() == Approx(total.item<float>()));
  CATCH_CHECK(arena.buffers()[0].parameters.count_nonzero().item<std::int64_t>() <= 3 + 35 + 120 + 1);
}

CATCH_TEST_CASE(
    "backward into an arena gives the bits of ordinary storage, tied weights and channels last included") {
  InArena flat;
  Expected expected({});
  CATCH_CHECK(flat.arena.members().size() == 5);
  for (std::int64_t window = 0; window < 3; ++window) {
    flat.arena.open_window();
    expected.net.zero_grad();
    for (const std::int64_t batch : {2 * window, 2 * window + 1}) {
      flat.microbatch(batch);
      expected.net.forward(batch).backward();
    }
    flat.arena.close_window();
    CATCH_CHECK(flat.arena.all_touched());
    check_tied(flat.arena);
    check_gradients(flat.net, expected.net);
    const torch::NoGradGuard no_grad;
    flat.arena.buffers()[0].parameters.add_(flat.arena.buffers()[0].gradients, -0.1);
    for (const auto& [name, parameter] : trainable_parameters(expected.net))
      parameter.add_(parameter.grad(), -0.1);
  }
  const auto parameters = trainable_parameters(expected.net);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CATCH_CHECK(torch::equal(flat.arena.members()[i].parameter, parameters[i].second));
  }
  CATCH_CHECK_FALSE(flat.net.scale.grad().defined());
}

CATCH_TEST_CASE("a parameter is touched by a gradient, be it exactly zero, and not by being there") {
  for (const auto layout : {ParameterLayout::flat, ParameterLayout::separate}) {
    const auto used = torch::ones({2}).requires_grad_();
    const auto times_zero = torch::ones({2}).requires_grad_();
    const auto unused = torch::ones({2}).requires_grad_();
    ParameterArena arena({{{"used", used}, {"times_zero", times_zero}, {"unused", unused}}}, layout);
    arena.open_window();
    (used.sum() + times_zero.sum() * 0).backward();
    arena.after_backward();
    arena.close_window();
    CATCH_CHECK(touched(arena) == std::vector<bool>{true, true, false});
    CATCH_CHECK_FALSE(arena.all_touched());
    CATCH_CHECK(arena.gradients().size() == (layout == ParameterLayout::flat ? 1 : 2));

    // One microbatch of the window is enough, and the next window starts anew.
    arena.open_window();
    (used.sum() + unused.sum()).backward();
    arena.after_backward();
    (used.sum() + times_zero.sum()).backward();
    arena.after_backward();
    arena.close_window();
    CATCH_CHECK(arena.all_touched());
    arena.open_window();
    arena.close_window();
    CATCH_CHECK(touched(arena) == std::vector<bool>{false, false, false});
  }
}

CATCH_TEST_CASE("a window begins with gradients of zero, which an update that cleared them has seen to") {
  InArena flat;
  flat.microbatch(0);
  flat.arena.open_window();
  CATCH_CHECK(flat.arena.buffers()[0].gradients.count_nonzero().item<std::int64_t>() == 0);
  flat.microbatch(1);
  flat.arena.gradients_are_zero();
  flat.arena.open_window();
  CATCH_CHECK(flat.arena.buffers()[0].gradients.count_nonzero().item<std::int64_t>() > 0);
}

CATCH_TEST_CASE("zeroing gradients between windows does no harm") {
  InArena flat;
  flat.microbatch(5);
  const bool set_to_none = GENERATE(true, false);
  torch::optim::SGD(flat.net.parameters(), 0.1).zero_grad(set_to_none);
  flat.arena.open_window();
  flat.microbatch(1);
  flat.microbatch(2);
  flat.arena.close_window();
  check_tied(flat.arena);
  check_gradients(flat.net, Expected({1, 2}).net);
}

CATCH_TEST_CASE("zeroing gradients inside a window is harmless at its first microbatch and refused later") {
  InArena flat;
  const bool set_to_none = GENERATE(true, false);
  flat.net.zero_grad(set_to_none);
  flat.microbatch(1);
  check_tied(flat.arena);
  check_gradients(flat.net, Expected({1}).net);

  flat.net.zero_grad(set_to_none);
  CATCH_CHECK(test::thrown_id<StepError>([&] { flat.microbatch(2); }) == "gradient-replaced");
  flat.arena.open_window();
  flat.microbatch(3);
  check_tied(flat.arena);
  check_gradients(flat.net, Expected({3}).net);
}

CATCH_TEST_CASE("gradients with a graph of their own are taken into the arena") {
  InArena flat;
  const bool first = GENERATE(true, false);
  flat.net.forward(1).backward({}, {}, /*create_graph=*/first);
  flat.arena.after_backward();
  flat.net.forward(2).backward({}, {}, /*create_graph=*/true);
  flat.arena.after_backward();
  flat.microbatch(3);
  flat.arena.close_window();
  CATCH_CHECK(flat.arena.all_touched());
  check_tied(flat.arena);
  check_gradients(flat.net, Expected({1, 2, 3}).net);
}

CATCH_TEST_CASE("autograd::grad touches nothing") {
  InArena flat;
  (void)torch::autograd::grad({flat.net.forward(1)}, {flat.net.embedding->weight});
  flat.arena.after_backward();
  flat.arena.close_window();
  CATCH_CHECK(touched(flat.arena) == std::vector<bool>(5, false));
}

CATCH_TEST_CASE(
    "a parameter with new data of its shape is copied in and tied again, wherever that happened") {
  InArena flat;
  const auto generation = flat.arena.generation();
  const auto& weight = flat.net.sometimes->weight;
  weight.set_data(torch::full({4, 4}, 0.25));
  const bool in_window = GENERATE(true, false);
  in_window ? flat.microbatch(1) : flat.arena.tie_parameters();
  check_tied(flat.arena);
  CATCH_CHECK(torch::equal(weight, torch::full({4, 4}, 0.25)));
  CATCH_CHECK(flat.arena.generation() > generation);
  if (in_window) {
    Expected expected({});
    expected.net.sometimes->weight.set_data(torch::full({4, 4}, 0.25));
    expected.net.forward(1).backward();
    check_gradients(flat.net, expected.net);
  }
}

CATCH_TEST_CASE("a parameter that became another view of the buffer is copied in and tied again") {
  InArena flat;
  const auto& weight = flat.net.sometimes->weight;
  const auto expected = weight.detach().t().clone();
  weight.set_data(weight.detach().t());
  flat.arena.tie_parameters();
  check_tied(flat.arena);
  CATCH_CHECK(weight.is_contiguous());
  CATCH_CHECK(torch::equal(weight, expected));
}

CATCH_TEST_CASE("weights that torch::load puts into the module are copied in and tied again") {
  Net saved;
  {
    const torch::NoGradGuard no_grad;
    for (const auto& [name, parameter] : trainable_parameters(saved)) parameter.add_(1);
  }
  torch::serialize::OutputArchive out;
  saved.save(out);
  std::stringstream file;
  out.save_to(file);
  InArena flat;
  torch::serialize::InputArchive in;
  in.load_from(file);
  flat.net.load(in);
  flat.arena.tie_parameters();
  check_tied(flat.arena);
  const auto expected = trainable_parameters(saved);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CATCH_CHECK(torch::equal(flat.arena.members()[i].parameter, expected[i].second));
  }
}

CATCH_TEST_CASE("a module converted to another type is refused, with all former parameters back in place") {
  InArena flat(GENERATE(ParameterLayout::flat, ParameterLayout::separate));
  const bool in_window = GENERATE(true, false);
  flat.net.to(at::kDouble);
  CATCH_CHECK(test::thrown_id<StepError>([&] {
                in_window ? flat.arena.after_backward() : flat.arena.tie_parameters();
              }) == "parameter-moved");
  const auto expected = trainable_parameters(Net());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CATCH_CHECK(torch::equal(flat.arena.members()[i].parameter, expected[i].second));
  }
  if (flat.arena.layout() == ParameterLayout::flat) check_tied(flat.arena);
}

CATCH_TEST_CASE("a parameter of another shape is refused by name") {
  InArena flat;
  flat.net.sometimes->bias.set_data(torch::zeros({5}));
  CATCH_CHECK_THROWS_WITH(flat.arena.tie_parameters(),
                          Catch::Matchers::Contains("sometimes.bias was Float [4] on cpu") &&
                              Catch::Matchers::Contains("has become Float [5]"));
}

CATCH_TEST_CASE("a sparse gradient is added where the dense one lies, or copied there") {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 3).sparse(true));
  ParameterArena arena({{{"weight", embedding->weight}}}, ParameterLayout::flat);
  arena.open_window();
  if (GENERATE(true, false)) embedding->zero_grad();  // then the first one replaces the dense one
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    embedding(torch::tensor({1, 3, 1})).sum().backward();
    arena.after_backward();
  }
  arena.close_window();
  check_tied(arena);
  CATCH_CHECK(arena.all_touched());
  const auto rows = torch::tensor({0.0f, 4.0f, 0.0f, 2.0f, 0.0f}).unsqueeze(1);
  CATCH_CHECK(torch::equal(embedding->weight.grad(), rows.expand({5, 3})));
}

CATCH_TEST_CASE("parameters have ordinary storage again when the arena goes, on an exception too") {
  Net net;
  const auto strides = net.convolution->weight.strides().vec();
  try {
    ParameterArena arena(parameters_of(net), ParameterLayout::flat);
    arena.open_window();
    net.forward(1).backward();
    throw std::runtime_error("in a Step");
  } catch (const std::runtime_error&) {
  }
  const auto expected = trainable_parameters(Net());
  const auto parameters = trainable_parameters(net);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    check_ordinary(parameters[i].second);
    CATCH_CHECK(torch::equal(parameters[i].second, expected[i].second));
  }
  CATCH_CHECK(net.convolution->weight.strides() == strides);
  net.forward(2).backward();
  check_gradients(net, Expected({2}).net);
}

CATCH_TEST_CASE("a second arena over the same parameters takes them over, and the first one back") {
  Net net;
  const auto groups = parameters_of(net);
  ParameterArena first(groups, ParameterLayout::flat);
  {
    const ParameterArena second(groups, ParameterLayout::flat);
    check_tied(second);
  }
  for (const auto& [name, parameter] : groups[0]) check_ordinary(parameter);
  first.tie_parameters();
  first.open_window();
  check_tied(first);
  net.forward(1).backward();
  first.after_backward();
  check_gradients(net, Expected({1}).net);
}

CATCH_TEST_CASE("an arena that goes while another one holds the parameters leaves them there") {
  Net net;
  auto first = std::make_unique<ParameterArena>(parameters_of(net), ParameterLayout::flat);
  const ParameterArena second(parameters_of(net), ParameterLayout::flat);
  first.reset();
  check_tied(second);
}

CATCH_TEST_CASE("parameters that overlap, or are sparse or not real, are refused and left as they were") {
  const auto whole = torch::zeros({8});
  const auto dense = torch::ones({4}).requires_grad_();
  CATCH_CHECK(refusal({{"dense", dense}, {"a", whole.narrow(0, 0, 5)}, {"b", whole.narrow(0, 4, 4)}}) ==
              "parameter-not-flat");
  CATCH_CHECK(
      refusal({{"dense", dense}, {"a", whole.narrow(0, 0, 4)}, {"b", whole.narrow(0, 4, 4)}}).empty());
  CATCH_CHECK(refusal({{"dense", dense}, {"expanded", torch::zeros({1, 3}).expand({4, 3})}}) ==
              "parameter-not-flat");
  CATCH_CHECK(refusal({{"dense", dense}, {"sparse", torch::eye(3).to_sparse()}}) == "parameter-not-flat");
  CATCH_CHECK(refusal({{"dense", dense}, {"complex", torch::zeros({2}, at::kComplexFloat)}}) ==
              "parameter-not-flat");
  check_ordinary(dense);
}

CATCH_TEST_CASE("a foreign optimizer leaves hidden parameters alone, its weight decay included") {
  InArena flat;
  flat.microbatch(1, /*use_sometimes=*/false);
  flat.arena.close_window();
  CATCH_CHECK(touched(flat.arena) == std::vector<bool>{true, true, true, false, false});
  const auto sometimes = flat.net.sometimes->weight.detach().clone();
  const auto convolution = flat.net.convolution->weight.detach().clone();
  torch::optim::AdamW adamw(flat.net.parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
  {
    const ParameterArena::HideUntouched hidden(flat.arena);
    CATCH_CHECK_FALSE(flat.net.sometimes->weight.grad().defined());
    adamw.step();
  }
  check_tied(flat.arena);
  CATCH_CHECK(torch::equal(flat.net.sometimes->weight, sometimes));
  CATCH_CHECK_FALSE(torch::equal(flat.net.convolution->weight, convolution));
}

CATCH_TEST_CASE(
    "in a loop of one's own whatever has a gradient is touched, and gradients are taken into the arena") {
  InArena flat;
  for (std::int64_t i = 1; i < 3; ++i) {
    flat.net.zero_grad();
    flat.net.forward(i, /*use_sometimes=*/i == 2).backward();
    flat.arena.take_gradients();
    CATCH_CHECK(touched(flat.arena) == std::vector<bool>{true, true, true, i == 2, i == 2});
  }
  check_tied(flat.arena);
  check_gradients(flat.net, Expected({2}).net);
  flat.arena.open_window();
  flat.microbatch(3);
  check_gradients(flat.net, Expected({3}).net);
}

CATCH_TEST_CASE("a separate arena moves nothing, and its windows begin without gradients") {
  Net net;
  const auto* data = net.embedding->weight.const_data_ptr();
  ParameterArena arena(parameters_of(net), ParameterLayout::separate);
  CATCH_CHECK(net.embedding->weight.const_data_ptr() == data);
  CATCH_CHECK(arena.buffers().empty());
  CATCH_CHECK(arena.blocks().size() == 5);
  net.forward(1).backward();
  arena.open_window();
  CATCH_CHECK_FALSE(net.embedding->weight.grad().defined());
  net.forward(2).backward();
  arena.after_backward();
  arena.close_window();
  check_gradients(net, Expected({2}).net);
  CATCH_CHECK(arena.blocks()[0].gradients.is_same(arena.members()[0].parameter.grad()));
}
