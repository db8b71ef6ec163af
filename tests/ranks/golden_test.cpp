// A checkpoint of format version 1 that must load forever: golden/format-1, written once by the hidden case below with
// LOCKSTEP_GOLDEN naming an empty folder, and not again as long as checkpoint_format_version is 1.
//
// Two ranks read the targets 1, 2, 3, ... one each. The gradient of w is the mean target of an update, and `seen` adds
// up a rank's own targets. SGD with rate 0.5 and momentum 0.5, an average with decay 0.5, worked out by hand:
//
//   update  gradient  velocity         w   average  seen on ranks 0, 1
//     1       1.5       1.5        -0.75   -0.375     1   2
//     2       3.5       4.25       -2.875  -1.625     4   6      the checkpoint
//     3       5.5       7.625      -6.6875 -4.15625   9  12
//     4       7.5      11.3125    -12.34375 -8.25    16  20
#include <filesystem>
#include <sstream>

#include "files/checkpoint.hpp"
#include "support/catch.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

struct Sums : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}, torch::kDouble));
  at::Tensor seen = register_buffer("seen", torch::zeros({}, torch::kDouble));
};

struct Level {
  NamedTensors state() const { return {{"value", torch::tensor(value)}}; }
  void load_state(const NamedTensors& state) { value = state.at(0).second.item<std::int64_t>(); }
  std::int64_t value;
};

/// Every rank returns w, its own `seen`, the average, and the registered object's value.
Ranks run_until(const fs::path& checkpoints, std::int64_t updates, std::int64_t initial_level) {
  return run_ranks(2, [&](Rank& rank) {
    Accelerator accelerator(rank.options());
    auto model = std::make_shared<Sums>();
    SGD optimizer(weight_decay_groups(*model, 0), {.lr = 0.5, .momentum = 0.5});
    DataLoader loader(TensorDataset(torch::arange(1, 9, torch::kDouble)), {});
    const auto step = [](Sums& sums, const Example& batch) -> StepOutput {
      const torch::NoGradGuard no_grad;
      sums.seen.add_(batch.data.sum());
      const torch::AutoGradMode grad(true);
      return {.loss = sums.w * batch.data.mean(), .num_samples = 1};
    };
    Trainer trainer(accelerator, model, optimizer, loader, step, {.ema_decay = 0.5});
    Level level{.value = initial_level};
    trainer.register_state("level", level);
    trainer.train({.epochs = 1, .max_steps = updates}, {.checkpoint_dir = checkpoints,
                                                         .resume_from = latest,
                                                         .metadata = {{"note", "golden"}}});
    std::ostringstream text;
    text << model->w.item<double>() << ' ' << model->seen.item<double>() << ' ';
    for (const auto& [name, tensor] : trainer.weights(Weights::ema)) {
      if (name == "w") text << tensor.item<double>() << ' ';
    }
    text << level.value;
    return text.str();
  });
}

fs::path golden() { return fs::path(__FILE__).parent_path() / "golden" / "format-1" / "step-00000002"; }

double value_of(const NamedTensors& tensors, const std::string& name) {
  for (const auto& [own_name, tensor] : tensors) {
    if (own_name == name) return tensor.item<double>();
  }
  throw std::runtime_error("no tensor " + name);
}

}  // namespace

CATCH_TEST_CASE("the run that wrote the golden checkpoint ends with its values; LOCKSTEP_GOLDEN says where it writes another") {
  const TemporaryDirectory scratch;
  const char* const kept = std::getenv("LOCKSTEP_GOLDEN");
  const fs::path folder = kept ? fs::path(kept) : scratch.path() / "checkpoints";
  CATCH_CHECK(run_until(folder, 2, 7).texts() == std::vector<std::string>{"-2.875 4 -1.625 7", "-2.875 6 -1.625 7"});
}

CATCH_TEST_CASE("the golden checkpoint of format version 1 is read as it was written") {
  const auto first = read_checkpoint(golden(), 0);
  CATCH_CHECK(first.manifest["format_version"] == 1);
  CATCH_CHECK(first.manifest["state"]["step"] == 2);
  CATCH_CHECK(first.manifest["state"]["batches"] == 2);
  CATCH_CHECK(first.manifest["state"]["samples"] == 4);
  CATCH_CHECK(first.manifest["metadata"]["note"] == "golden");
  CATCH_CHECK(first.manifest["fingerprint"]["world_size"] == 2);
  CATCH_CHECK(value_of(first.model, "w") == -2.875);
  CATCH_CHECK(value_of(first.model, "seen") == 4);
  CATCH_CHECK(value_of(first.ema, "w") == -1.625);
  CATCH_CHECK(value_of(first.optimizer, "w/momentum_buffer") == 4.25);
  CATCH_CHECK(value_of(first.registered, "level/value") == 7);
  CATCH_CHECK(value_of(read_checkpoint(golden(), 1).rank, "buffer/0") == 6);
}

CATCH_TEST_CASE("a run goes on from the golden checkpoint of format version 1") {
  const TemporaryDirectory folder;
  const auto checkpoints = folder.path() / "checkpoints";
  fs::create_directory(checkpoints);
  fs::copy(golden(), checkpoints / "step-00000002");
  const auto ranks = run_until(checkpoints, 4, 0);
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{"-12.3438 16 -8.25 7", "-12.3438 20 -8.25 7"});
}

}  // namespace lockstep::test
