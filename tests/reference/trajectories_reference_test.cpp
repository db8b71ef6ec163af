// Whole runs against Python's: tests/reference/record_trajectories.py records what is compared here. Runs with an fp16
// loss scaler and its overflows are those of precision_reference_test.cpp.
#include "support/catch.hpp"
#include "reference/recorded.hpp"
#include "support/fixtures.hpp"

namespace lockstep::test {
namespace {

using nlohmann::json;

const json& recorded() {
  static const json all = read_recorded("trajectories.json");
  return all;
}

std::vector<Example> microbatches() {
  std::vector<Example> batches;
  for (const auto& batch : recorded().at("batches")) {
    batches.push_back({matrix(batch.at("data")), matrix(batch.at("target"))});
  }
  return batches;
}

std::unique_ptr<torch::optim::Optimizer> adamw(const json& run, const torch::nn::Module& net) {
  const auto& given = run.at("options");
  auto options = torch::optim::AdamWOptions(given.at("lr").get<double>())
                     .weight_decay(given.at("weight_decay").get<double>())
                     .eps(given.value("eps", 1e-8))
                     .amsgrad(given.value("amsgrad", false));
  if (given.contains("betas")) options.betas({given.at("betas")[0], given.at("betas")[1]});
  if (!run.contains("no_decay_lr")) return std::make_unique<torch::optim::AdamW>(net.parameters(), options);
  auto groups = weight_decay_groups(net, options.weight_decay());
  groups.at(1).lr = run.at("no_decay_lr").get<double>();
  return std::make_unique<GroupedOptimizer<torch::optim::AdamW>>(groups, options);
}

std::unique_ptr<torch::optim::Optimizer> optimizer(const json& run, const torch::nn::Module& net) {
  if (run.at("name").get<std::string>().starts_with("AdamW")) return adamw(run, net);
  const auto& given = run.at("options");
  return std::make_unique<torch::optim::SGD>(net.parameters(),
                                             torch::optim::SGDOptions(given.at("lr").get<double>())
                                                 .momentum(given.at("momentum").get<double>())
                                                 .dampening(given.value("dampening", 0.0))
                                                 .weight_decay(given.at("weight_decay").get<double>())
                                                 .nesterov(given.value("nesterov", false)));
}

WarmupDecay warmup_decay(const json& given) {
  return {.total_steps = given.at("total_steps"),
          .warmup_steps = given.at("warmup_steps"),
          .start_factor = given.at("start_factor"),
          .minimum_factor = given.at("minimum_factor"),
          .decay = given.at("decay") == "cosine" ? WarmupDecay::Decay::cosine : WarmupDecay::Decay::linear};
}

std::optional<double> number(const json& run, const std::string& key) {
  return run.contains(key) ? std::optional(run.at(key).get<double>()) : std::nullopt;
}

/// The largest difference, as a part of the largest number.
double difference(const at::Tensor& ours, const json& pythons) {
  const auto expected = doubles(pythons);
  return ((ours - expected).abs().max() / expected.abs().max()).item<double>();
}

std::vector<at::Tensor> tensors(const NamedTensors& named) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : named) result.push_back(tensor.second);
  return result;
}

/// Follows one recorded run, update by update.
void follow_python(const json& run, Precision precision, double tolerance) {
  Accelerator accelerator({.precision = precision,
                           .gradient_accumulation_steps = run.value("accumulation", 1),
                           .device = at::kCPU});
  TwoLayers net(3, 3, 1);
  fill(net, doubles(recorded().at("start")));
  const auto torch_optimizer = optimizer(run, net);
  auto batches = microbatches();
  auto step = [](TwoLayers& model, const Example& batch) -> StepOutput {
    return {.loss = torch::nn::functional::mse_loss(model.forward(batch.data), batch.target),
            .num_samples = batch.target.size(0)};
  };
  RecordedLog log;
  Trainer trainer(accelerator, net, *torch_optimizer, batches, step,
                  {.ema_decay = number(run, "ema_decay"), .logger = log.logger()});
  if (run.contains("schedule")) trainer.set_scheduler(warmup_decay(run.at("schedule")));

  Numbers losses;
  Numbers norms;
  std::vector<Numbers> rates(run.at("updates")[0].at("rates").size());
  for (const auto& update : run.at("updates")) {
    losses.push_back(update.at("loss"));
    norms.push_back(update.at("grad_norm"));
    for (std::size_t i = 0; i < rates.size(); ++i) rates[i].push_back(update.at("rates")[i]);
    CATCH_CAPTURE(losses.size());
    trainer.train({.max_steps = static_cast<std::int64_t>(losses.size()),
                   .log_every = 1,
                   .max_grad_norm = number(run, "max_grad_norm")});
    CATCH_CHECK(difference(flat(net.parameters()), update.at("weights")) <= tolerance);
    if (update.contains("average")) {
      CATCH_CHECK(difference(flat(tensors(trainer.weights(Weights::ema))), update.at("average")) <= tolerance);
    }
  }
  check_close(second(log.series("train/loss")), losses, tolerance);
  check_close(second(log.series("grad_norm")), norms, tolerance);
  check_close(second(log.series(rates.size() == 1 ? "lr" : "lr/decay")), rates.front(), 1e-14);
  if (rates.size() > 1) check_close(second(log.series("lr/no_decay")), rates.back(), 1e-14);
}

void follow_all(Precision precision, double tolerance) {
  std::size_t updates = 0;
  for (const auto& run : recorded().at("runs")) {
    if (run.at("precision") != to_string(precision)) continue;
    const std::string name = run.at("name");
    CATCH_CAPTURE(name);
    follow_python(run, precision, tolerance);
    updates += run.at("updates").size();
  }
  CATCH_CHECK(updates == 4 * 50);
}

CATCH_TEST_CASE("50 updates of AdamW and SGD in double follow Python's to 1e-12") {
  follow_all(Precision::fp64, 1e-12);
}

// A window's gradient is a sum over microbatches here and one pass over all its samples in Python, so every update adds
// a few units in the last place, 2^-24, of a difference that momentum carries on.
CATCH_TEST_CASE("50 updates of AdamW and SGD in single precision follow Python's to rounding") {
  follow_all(Precision::fp32, 64 * 0x1p-24);
}

}  // namespace
}  // namespace lockstep::test
