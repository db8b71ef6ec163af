// Mixed-precision runs against Python's: tests/reference/record_precision.py records what is compared here.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/fixtures.hpp"

namespace lockstep::test {
namespace {

using Numbers = std::vector<double>;

const nlohmann::json& recorded_runs() {
  static const auto json =
      nlohmann::json::parse(read_text(std::filesystem::path(__FILE__).parent_path() / "precision.json"));
  return json;
}

at::Tensor floats(const nlohmann::json& numbers) {
  return torch::tensor(numbers.get<Numbers>(), torch::kDouble).to(torch::kFloat);
}

struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(4, 8));
    last = register_module("last", torch::nn::Linear(8, 3));
  }

  at::Tensor forward(const at::Tensor& data) { return last(torch::tanh(first(data))); }

  torch::nn::Linear first{nullptr};
  torch::nn::Linear last{nullptr};
};

at::Tensor flat(const torch::nn::Module& net) {
  std::vector<at::Tensor> parts;
  for (const auto& parameter : net.parameters()) parts.push_back(parameter.detach().flatten());
  return torch::cat(parts);
}

void set(torch::nn::Module& net, const at::Tensor& values) {
  const torch::NoGradGuard no_grad;
  std::int64_t begin = 0;
  for (auto& parameter : net.parameters()) {
    parameter.copy_(values.narrow(0, begin, parameter.numel()).view_as(parameter));
    begin += parameter.numel();
  }
}

std::vector<Example> data() {
  std::vector<Example> batches;
  for (std::size_t i = 0; i < recorded_runs().at("data").size(); ++i) {
    const auto target = recorded_runs().at("target")[i].get<std::vector<std::int64_t>>();
    std::vector<at::Tensor> rows;
    for (const auto& row : recorded_runs().at("data")[i]) rows.push_back(floats(row));
    batches.push_back({torch::stack(rows), torch::tensor(target)});
  }
  return batches;
}

std::unique_ptr<torch::optim::Optimizer> optimizer(const std::string& kind, const torch::nn::Module& net) {
  if (kind == "SGD") {
    return std::make_unique<torch::optim::SGD>(
        net.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9).weight_decay(0.01));
  }
  return std::make_unique<torch::optim::AdamW>(net.parameters(),
                                               torch::optim::AdamWOptions(0.02).weight_decay(0.05));
}

Numbers second(const std::vector<std::pair<std::int64_t, double>>& series) {
  Numbers values;
  for (const auto& [step, value] : series) values.push_back(value);
  return values;
}

void check_close(const Numbers& ours, const Numbers& pythons, double tolerance) {
  CATCH_REQUIRE(ours.size() == pythons.size());
  for (std::size_t i = 0; i < ours.size(); ++i) {
    CATCH_CAPTURE(i);
    CATCH_CHECK(ours[i] == Approx(pythons[i]).epsilon(tolerance));
  }
}

// Another processor may round other halves than the one that recorded, and what is rounded otherwise stays so
// in all later updates: a difference of some units in the last place of the half type (2^-8 of bf16, 2^-11 of
// fp16) is allowed.
CATCH_TEST_CASE("mixed-precision runs follow Python's, update by update") {
  const auto [precision, tolerance] = GENERATE(
      table<Precision, double>({{Precision::bf16_mixed, 4 * 0x1p-8}, {Precision::fp16_mixed, 4 * 0x1p-11}}));
  const std::string kind = GENERATE("SGD", "AdamW");
  const auto& python = recorded_runs().at("runs").at(kind + " " + to_string(precision));
  CATCH_CAPTURE(kind, to_string(precision));

  AcceleratorOptions options{.precision = precision, .device = at::kCPU};
  if (precision == Precision::fp16_mixed) {
    options.loss_scaler = LossScalerOptions{.initial_scale = 0x1p22, .growth_interval = 4};
  }
  Accelerator accelerator(options);
  Net net;
  const auto start = floats(recorded_runs().at("start"));
  set(net, start);
  const auto torch_optimizer = optimizer(kind, net);
  auto batches = data();
  Numbers losses;
  auto step = [&losses](Net& model, const Example& batch) -> StepOutput {
    const auto loss = torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
    losses.push_back(loss.item<double>());
    return {.loss = loss, .num_samples = batch.target.size(0)};
  };
  RecordedLog log;
  Trainer trainer(accelerator, net, *torch_optimizer, batches, step, {.logger = log.logger()});

  std::int64_t update = 0;
  for (const auto& weights : python.at("weights")) {
    CATCH_CAPTURE(++update);
    trainer.train({.epochs = 100, .max_steps = update, .log_every = 1, .max_grad_norm = 1.0});
    const auto expected = floats(weights);
    const double moved = (expected - start).abs().max().item<double>();
    const double difference = (flat(net) - expected).abs().max().item<double>();
    CATCH_CHECK(difference <= tolerance * moved);
  }
  check_close(losses, python.at("losses").get<Numbers>(), tolerance);
  check_close(second(log.series("grad_norm")), python.at("grad_norms").get<Numbers>(), tolerance);
  if (precision == Precision::fp16_mixed) {
    CATCH_CHECK(log.count("skip") >= 2);
    CATCH_CHECK(second(log.series("loss_scale")) == python.at("scales").get<Numbers>());
  }
}

}  // namespace
}  // namespace lockstep::test
