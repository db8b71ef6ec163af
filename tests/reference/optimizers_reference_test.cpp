// Our optimizers against Python's, wherever the parameters lie: tests/reference/record_optimizers.py records
// what is compared here. What they do to an element depends on its own start and gradients alone, so
// parameters of any size are tiled from the few elements that were recorded.
#include "lockstep/optim/adamw.hpp"
#include "lockstep/optim/sgd.hpp"
#include "reference/recorded.hpp"
#include "support/catch.hpp"

namespace lockstep::test {
namespace {

using nlohmann::json;

const json& recorded() {
  static const json all = read_recorded("optimizers.json");
  return all;
}

/// A parameter of a shape and of strides of its own, and which of the run's parameters its elements are.
struct Tiled {
  std::size_t species;
  std::vector<std::int64_t> shape;
  at::Tensor index;  // of each element among those recorded
  at::Tensor parameter;

  [[nodiscard]] at::Tensor of(const at::Tensor& values) const {
    return values.index_select(0, index).view(shape);
  }
};

/// The large one is more than an optimizer steps at once.
const std::vector<std::vector<std::int64_t>> shapes = {{1}, {17}, {2, 3, 4, 5}, {64}, {3}, {7, 5}, {33000}};

/// Every shape as often as there are parameters in the run, which stand in pairs, so that some that get a
/// gradient together are neighbours.
std::vector<Tiled> tiled(const json& run, at::ScalarType type) {
  const auto start = doubles(recorded().at("start"));
  std::vector<Tiled> result;
  for (std::size_t i = 0; i < shapes.size() * run.at("parameters").size(); ++i) {
    Tiled tile{.species = i / 2 % run.at("parameters").size(),
               .shape = shapes[i % shapes.size()],
               .index = {},
               .parameter = {}};
    const auto elements = c10::multiply_integers(tile.shape);
    tile.index = (torch::arange(elements) + static_cast<std::int64_t>(i)).remainder(start.size(0));
    const auto value = tile.of(start).to(type);
    if (tile.shape.size() == 4) tile.parameter = value.contiguous(at::MemoryFormat::ChannelsLast);
    if (tile.shape.size() == 2) tile.parameter = value.t().contiguous().t();
    if (tile.shape.size() == 1) tile.parameter = value;
    tile.parameter.requires_grad_();
    result.push_back(std::move(tile));
  }
  return result;
}

ParameterGroups groups_of(const json& run, const std::vector<Tiled>& tiles) {
  ParameterGroups groups;
  for (std::size_t i = 0; i < run.at("groups").size(); ++i) {
    groups.push_back(
        {.name = std::to_string(i), .parameters = {}, .weight_decay = run["groups"][i]["weight_decay"]});
  }
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const std::size_t group = run["parameters"][tiles[i].species]["group"];
    groups[group].parameters.emplace_back("p" + std::to_string(i), tiles[i].parameter);
  }
  return groups;
}

std::unique_ptr<Optimizer> optimizer(const json& run, const ParameterGroups& groups) {
  const std::string name = run.at("optimizer");
  std::map<std::string, SGDOptions> of_sgd;
  std::map<std::string, AdamOptions> of_adam;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto& given = run["groups"][i];
    if (name == "SGD") {
      of_sgd[groups[i].name] = {.lr = given.at("lr"),
                                .momentum = given.at("momentum"),
                                .dampening = given.at("dampening"),
                                .nesterov = given.at("nesterov"),
                                .maximize = given.at("maximize")};
    } else {
      of_adam[groups[i].name] = {.lr = given.at("lr"),
                                 .beta1 = given.at("betas")[0],
                                 .beta2 = given.at("betas")[1],
                                 .eps = given.at("eps"),
                                 .amsgrad = given.at("amsgrad"),
                                 .maximize = given.at("maximize")};
    }
  }
  if (name == "SGD") return std::make_unique<SGD>(groups, SGDOptions{}, of_sgd);
  if (name == "Adam") return std::make_unique<Adam>(groups, AdamOptions{}, of_adam);
  return std::make_unique<AdamW>(groups, AdamWOptions{}, of_adam);
}

void set_rates(torch::optim::Optimizer& optimizer, const json& run, std::size_t update) {
  const auto& factors = run.at("lr_factors");
  const double factor = factors[(update - 1) % factors.size()];
  for (std::size_t i = 0; i < run.at("groups").size(); ++i) {
    optimizer.param_groups()[i].options().set_lr(run["groups"][i]["lr"].get<double>() * factor);
  }
}

bool has_gradient(const json& parameter, std::size_t update) {
  const auto& present = parameter.at("present");
  return std::find(present.begin(), present.end(), update % parameter.at("period").get<std::size_t>()) !=
         present.end();
}

/// The largest difference from the recorded weights, as a part of the largest of them.
double difference(const std::vector<Tiled>& tiles, const json& weights) {
  double result = 0;
  double largest = 0;
  for (const auto& tile : tiles) {
    // The digits that were recorded give the number back in its own type.
    const auto expected = doubles(weights[tile.species]).to(tile.parameter.scalar_type()).to(at::kDouble);
    largest = std::max(largest, expected.abs().max().item<double>());
    const auto ours = tile.parameter.detach().to(at::kDouble);
    result = std::max(result, (ours - tile.of(expected)).abs().max().item<double>());
  }
  return result / largest;
}

/// How a run is stepped: by step(), in a loop of one's own, or by a Trainer's update() in one of its layouts.
using Way = std::optional<ParameterLayout>;

/// Follows one recorded run, and returns the largest difference() on the way.
double follow(const json& run, at::ScalarType type, Way way) {
  const auto tiles = tiled(run, type);
  const auto groups = groups_of(run, tiles);
  const auto own = optimizer(run, groups);
  std::optional<ParameterArena> arena;
  if (way) {
    std::vector<NamedTensors> parameters;
    for (const auto& group : groups) parameters.push_back(group.parameters);
    arena.emplace(parameters, *way);
    own->attach(*arena);
  }

  double result = 0;
  std::size_t compared = 0;
  const std::vector<std::size_t> updates = recorded().at("updates");
  for (std::size_t update = 1; update <= updates.back(); ++update) {
    set_rates(*own, run, update);
    // A Trainer's gradients are a sum, and the update divides; three times a gradient is exact in every type.
    const double divisor = way && update % 2 == 1 ? 3 : 1;
    const auto values = (doubles(recorded().at("gradients")[update - 1]) * divisor).to(type);
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> gradients;
    for (const auto& tile : tiles) {
      if (!has_gradient(run["parameters"][tile.species], update)) continue;
      parameters.push_back(tile.parameter);
      gradients.push_back(tile.of(values));
    }
    if (way) {
      arena->open_window();
      torch::autograd::backward(parameters, gradients);
      arena->after_backward();
      arena->close_window();
      own->update({.divisor = divisor, .clear_gradients = update % 3 == 0});
    } else {
      for (const auto& tile : tiles) tile.parameter.mutable_grad().reset();
      for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = gradients[i];
      own->step();
    }
    if (update == updates[compared]) result = std::max(result, difference(tiles, run["weights"][compared++]));
  }
  if (arena) own->detach(*arena);
  return result;
}

void follow_all(const std::string& precision, at::ScalarType type, const std::string& name,
                double tolerance) {
  std::size_t runs = 0;
  for (const auto& run : recorded().at("runs")) {
    if (run.at("precision") != precision || run.at("optimizer") != name) continue;
    ++runs;
    const std::string options = run.at("groups").dump() + run.at("parameters").dump();
    CATCH_CAPTURE(options);
    for (const Way way : {Way(), Way(ParameterLayout::separate), Way(ParameterLayout::flat)}) {
      CATCH_CAPTURE(way.has_value(), way == ParameterLayout::flat);
      CATCH_CHECK(follow(run, type, way) <= tolerance);
    }
  }
  const bool half = type == at::kBFloat16 || type == at::kHalf;
  CATCH_CHECK(runs == (name == "SGD" ? (half ? 5 : 20) : (half ? 2 : 8)) + 3);
}

CATCH_TEST_CASE("50 updates with every combination of options follow Python's in double to 1e-12") {
  for (const auto* name : {"AdamW", "Adam", "SGD"}) follow_all("fp64", at::kDouble, name, 1e-12);
}

// In units in the last place of the largest weight, 2^-24 of it. The largest differences found, with AVX2,
// were 1.1, 3.3 and 41. Momentum carries the rounding of weight decay on: Python's own single precision is 88
// away from its double.
CATCH_TEST_CASE(
    "50 updates with every combination of options follow Python's in single precision to rounding") {
  follow_all("fp32", at::kFloat, "AdamW", 4 * 0x1p-24);
  follow_all("fp32", at::kFloat, "Adam", 8 * 0x1p-24);
  follow_all("fp32", at::kFloat, "SGD", 96 * 0x1p-24);
}

CATCH_TEST_CASE("half parameters are exactly what Python's fp32 copies of them round to") {
  for (const auto* name : {"AdamW", "Adam", "SGD"}) {
    follow_all("bf16", at::kBFloat16, name, 0);
    follow_all("fp16", at::kHalf, name, 0);
  }
}

}  // namespace
}  // namespace lockstep::test
