// Mixed-precision runs against Python's: tests/reference/record_precision.py records what is compared here.
#include "support/catch.hpp"
#include "reference/recorded.hpp"
#include "support/fixtures.hpp"

namespace lockstep::test {
namespace {

const nlohmann::json& recorded_runs() {
  static const auto json = read_recorded("precision.json");
  return json;
}

std::vector<Example> data() {
  std::vector<Example> batches;
  for (std::size_t i = 0; i < recorded_runs().at("data").size(); ++i) {
    const auto target = recorded_runs().at("target")[i].get<std::vector<std::int64_t>>();
    batches.push_back({matrix(recorded_runs().at("data")[i]), torch::tensor(target)});
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
  TwoLayers net(4, 8, 3);
  const auto start = doubles(recorded_runs().at("start"));
  fill(net, start);
  const auto torch_optimizer = optimizer(kind, net);
  auto batches = data();
  Numbers losses;
  auto step = [&losses](TwoLayers& model, const Example& batch) -> StepOutput {
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
    const auto expected = doubles(weights);
    const double moved = (expected - start).abs().max().item<double>();
    const double difference = (flat(net.parameters()) - expected).abs().max().item<double>();
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
