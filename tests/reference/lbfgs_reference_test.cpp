// Whole runs of L-BFGS, through an optimizer_step, against Python's: tests/reference/record_lbfgs.py records them.
#include "reference/recorded.hpp"
#include "support/catch.hpp"
#include "support/fixtures.hpp"

namespace lockstep::test {
namespace {

using nlohmann::json;

torch::optim::LBFGSOptions options_of(const json& given) {
  auto options = torch::optim::LBFGSOptions(given.at("lr").get<double>())
                     .max_iter(given.at("max_iter"))
                     .history_size(given.at("history_size"));
  if (given.contains("line_search_fn")) options.line_search_fn(given.at("line_search_fn").get<std::string>());
  return options;
}

/// Follows one recorded run, update by update and evaluation by evaluation.
void follow_python(const json& recorded, const json& run, bool flat_parameters) {
  Accelerator accelerator({.precision = Precision::fp64,
                           .gradient_accumulation_steps = run.at("accumulation"),
                           .device = at::kCPU});
  TwoLayers net(3, 3, 1);
  fill(net, doubles(recorded.at("start")));
  torch::optim::LBFGS optimizer(net.parameters(), options_of(run.at("options")));
  std::vector<Example> batches;
  for (const auto& batch : recorded.at("batches")) {
    batches.push_back({matrix(batch.at("data")), matrix(batch.at("target"))});
  }
  auto step = [](TwoLayers& model, const Example& batch) -> StepOutput {
    return {.loss = torch::nn::functional::mse_loss(model.forward(batch.data), batch.target),
            .num_samples = batch.target.size(0)};
  };
  Numbers losses;
  const auto optimizer_step = [&losses](torch::optim::Optimizer& given, const LossClosure& closure) {
    given.step([&] {
      const auto loss = closure();
      losses.push_back(loss.item<double>());
      return loss;
    });
  };
  Trainer trainer(accelerator, net, optimizer, batches, step,
                  {.flat_parameters = flat_parameters, .optimizer_step = optimizer_step});
  std::optional<double> max_grad_norm;
  if (run.contains("max_grad_norm")) max_grad_norm = run.at("max_grad_norm").get<double>();

  std::int64_t updates = 0;
  for (const auto& update : run.at("updates")) {
    losses.clear();
    trainer.train({.max_steps = ++updates, .max_grad_norm = max_grad_norm});
    CATCH_CAPTURE(updates);
    check_close(losses, update.at("losses"), 1e-9);
    const auto weights = flat(net.parameters());
    check_close(Numbers(weights.data_ptr<double>(), weights.data_ptr<double>() + weights.numel()), update.at("weights"),
                1e-9);
  }
  CATCH_CHECK(updates == 8);
}

CATCH_TEST_CASE("L-BFGS follows Python's, with and without a line search, clipped, over unequal microbatches") {
  const json recorded = read_recorded("lbfgs.json");
  CATCH_REQUIRE(recorded.at("runs").size() == 4);
  for (const auto& run : recorded.at("runs")) {
    for (const bool flat_parameters : {true, false}) {
      const std::string name = run.at("name");
      CATCH_CAPTURE(name, flat_parameters);
      follow_python(recorded, run, flat_parameters);
    }
  }
}

}  // namespace
}  // namespace lockstep::test
