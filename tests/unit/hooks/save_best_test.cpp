#include "lockstep/hooks/save_best.hpp"

#include "support/fixtures.hpp"
#include "support/ranks.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr auto every_step = Interval{1, Interval::Unit::step};

double saved_weight(const std::filesystem::path& file) {
  return read_weights(file).at(0).second.item<double>();
}

}  // namespace

CATCH_TEST_CASE("the file has the weights of the best evaluation, and load_weights() brings them back") {
  const TemporaryDirectory folder;
  const auto file = folder.path() / "best.safetensors";
  std::vector<double> in_file;
  OneWeight reloaded;
  OneWeight model;
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
  Batches source = numbered_batches(4);
  Batches held_out = batches({{0}});
  Evaluator evaluator(accelerator, {{"validation", held_out}},
                      OneWeightStep<at::Tensor>(script({3, 1, 2, 0.5})));
  SaveBest best(model, file, Monitor("validation/score"));
  const HookFunctions look{.evaluation_end = [&](Run&, Weights, const EvaluationResults&) {
    in_file.push_back(saved_weight(file));
  }};
  Trainer trainer(accelerator, model, optimizer, source, OneWeightStep<at::Tensor>(ledger),
                  {.evaluator = &evaluator, .hooks = {best, look}});
  trainer.train({.epochs = 1, .evaluate_every = every_step});
  CATCH_CHECK(in_file == std::vector<double>{-1, -2, -2, -4});
  (void)load_weights(reloaded, file);
  CATCH_CHECK(reloaded.value() == -4);
}

CATCH_TEST_CASE(
    "averaged weights are saved where they are evaluated, by the main process alone, also of a resumed run") {
  const TemporaryDirectory folder;
  const auto file = folder.path() / "best.safetensors";
  for (const std::int64_t until : {2, 3}) {
    const auto ranks = run_ranks(2, [&](Rank& rank) {
      Accelerator accelerator(rank.options());
      OneWeight model;
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
      Batches source = numbered_batches(8);
      // Worse and worse: the first average stays the best.
      const OneWeightStep<at::Tensor> score = [](OneWeight& net, const at::Tensor&) -> StepOutput {
        return {.loss = -net.w, .num_samples = 1};
      };
      Batches held_out = batches({{0}, {0}});
      Evaluator evaluator(accelerator, {{"validation", held_out}}, score);
      SaveBest best(model, rank.number == 0 ? file : "/nowhere/best.safetensors", Monitor("validation/loss"));
      Trainer trainer(accelerator, model, optimizer, source, OneWeightStep<at::Tensor>(ledger),
                      {.evaluator = &evaluator, .ema_decay = 0.5, .hooks = {best}});
      trainer.train({.max_steps = until, .evaluate_every = every_step},
                    {.checkpoint_dir = folder.path() / "checkpoints", .resume_from = latest});
      return std::to_string(trainer.state().step);
    });
    CATCH_CAPTURE(ranks.report());
    CATCH_CHECK(ranks.same_text() == std::to_string(until));
    CATCH_CHECK(saved_weight(file) == -0.5);
  }
}
