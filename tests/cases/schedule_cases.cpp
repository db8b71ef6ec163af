// Failures of other training loops with schedules that follow a metric, over an interruption.
#include <nlohmann/json.hpp>

#include "support/file_text.hpp"
#include "support/fixtures.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// The rates of updates, one an epoch; the evaluation after each scores 1 whatever happens. Goes on in `checkpoints`.
std::vector<double> rates_until(std::int64_t epochs, const Plateau& plateau, const std::filesystem::path& checkpoints) {
  RecordedLog log;
  OneWeightRun run(numbered_batches(1), ledger,
                   {.evaluation_set = numbered_batches(1),
                    .evaluation_step = [](OneWeight& model, const at::Tensor&) -> StepOutput {
                      return {.loss = model.w, .num_samples = 1, .metrics = {{"score", MeanMetric(1.0, 1)}}};
                    },
                    .logger = log.logger()});
  run.trainer.set_scheduler(plateau);
  (void)run.trainer.train({.epochs = epochs, .log_every = 1}, {.checkpoint_dir = checkpoints, .resume_from = latest});
  std::vector<double> rates;
  for (const auto& [step, rate] : log.series("lr")) rates.push_back(rate);
  return rates;
}

nlohmann::json schedule_in(const std::filesystem::path& checkpoints) {
  return nlohmann::json::parse(read_text(checkpoints / "last" / "manifest.json")).at("schedule");
}

}  // namespace

CATCH_TEST_CASE("a plateau that is resumed keeps its rate and takes each evaluation once", "[T-16]") {
  const TemporaryDirectory folder;
  const Plateau plateau{.metric = "validation/score", .factor = 0.5, .patience = 10};
  (void)rates_until(1, plateau, folder.path());
  const auto saved = schedule_in(folder.path());
  CATCH_CHECK(rates_until(1, plateau, folder.path()).empty());
  CATCH_CHECK(schedule_in(folder.path()) == saved);
  CATCH_CHECK(rates_until(3, plateau, folder.path()) == std::vector<double>{1, 1});
  // The first of three evaluations is the best, the others are bad ones.
  CATCH_CHECK(schedule_in(folder.path()).at("plateau_state").at("bad_evaluations") == 2);
}

CATCH_TEST_CASE("the patience of a plateau goes on over an interruption", "[T-17]") {
  const Plateau plateau{.metric = "validation/score", .factor = 0.5, .patience = 2};
  const std::vector<double> after_evaluations = {1, 1, 1, .5, .5, .5, .25};
  const TemporaryDirectory whole, interrupted;
  auto rates = rates_until(8, plateau, whole.path());
  CATCH_CHECK(std::vector(rates.begin() + 1, rates.end()) == after_evaluations);
  rates = rates_until(3, plateau, interrupted.path());
  for (const double rate : rates_until(8, plateau, interrupted.path())) rates.push_back(rate);
  CATCH_CHECK(std::vector(rates.begin() + 1, rates.end()) == after_evaluations);
}
