// The user's own objects in checkpoints, and the objective.
#include "lockstep/loop/registered_state.hpp"

#include "loop/trained_modules.hpp"
#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;

namespace {

struct Level {
  NamedTensors state() const { return {{"level", torch::tensor(level)}, {"nothing", torch::empty({0})}}; }
  void load_state(const NamedTensors& state) {
    for (const auto& [name, tensor] : state) {
      if (name == "level") level = tensor.item<std::int64_t>();
    }
  }
  std::int64_t level = 0;
};
static_assert(Stateful<Level>);

struct ReadOnly {
  NamedTensors state() const;
};
static_assert(!Stateful<ReadOnly>);

/// loss = offset of the objective - w, and a buffer that counts calls in train mode.
struct Offset : torch::nn::Module {
  Offset() {
    offset = register_parameter("offset", torch::zeros({}, torch::kDouble));
    calls = register_buffer("calls", torch::zeros({}, torch::kLong));
  }
  at::Tensor offset;
  at::Tensor calls;
};

/// Follows the objective as it follows the weight: each update moves both by the rate, in opposite directions.
struct ObjectiveRun {
  explicit ObjectiveRun(RunLogger* logger = nullptr)
      : accelerator({.precision = Precision::fp64, .device = at::kCPU}),
        objective(std::make_shared<Offset>()),
        optimizer({model.w, objective->offset}, torch::optim::SGDOptions(1)),
        source(numbered_batches(3)),
        step([this](OneWeight& net, const at::Tensor&) -> StepOutput {
          if (objective->is_training()) objective->calls.add_(1);
          return {.loss = objective->offset - net.w, .num_samples = 1};
        }),
        evaluator(accelerator, {{"validation", source}}, step),
        trainer(accelerator, model, optimizer, source, step,
                {.evaluator = &evaluator, .objective = objective, .logger = logger}) {}

  Accelerator accelerator;
  OneWeight model;
  std::shared_ptr<Offset> objective;
  torch::optim::SGD optimizer;
  Batches source;
  OneWeightStep<at::Tensor> step;
  Evaluator<OneWeightStep<at::Tensor>> evaluator;
  Trainer<OneWeight, Batches, OneWeightStep<at::Tensor>> trainer;
};

}  // namespace

CATCH_TEST_CASE("a registered object goes on where it was") {
  const TemporaryDirectory directory;
  Level first_level, second_level;
  OneWeightRun first(numbered_batches(3), [&](OneWeight& model, const at::Tensor& batch) {
    ++first_level.level;
    return ledger(model, batch);
  });
  first.trainer.register_state("curriculum", first_level);
  (void)first.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path()});
  OneWeightRun second(numbered_batches(3), ledger);
  second.trainer.register_state("curriculum", second_level);
  (void)second.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(second_level.level == 3);
}

CATCH_TEST_CASE("a saved object that is not registered is an error, a registered one that was not saved a warning") {
  const TemporaryDirectory directory;
  Level level{.level = 4};
  OneWeightRun with(numbered_batches(1), ledger);
  with.trainer.register_state("curriculum", level);
  (void)with.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path() / "with"});
  OneWeightRun without(numbered_batches(1), ledger);
  CATCH_CHECK_THAT(
      train_error(without, {.epochs = 1}, {.checkpoint_dir = directory.path() / "with", .resume_from = latest}),
      Contains("[checkpoint-does-not-fit]") && Contains("the state of \"curriculum\", which is not registered"));

  (void)without.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path() / "without"});
  OneWeightRun later(numbered_batches(1), ledger);
  later.trainer.register_state("curriculum", level);
  const auto said = captured_stderr([&] {
    (void)later.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path() / "without", .resume_from = latest});
  });
  CATCH_CHECK_THAT(said, Contains("the checkpoint has no state of \"curriculum\""));
  CATCH_CHECK(level.level == 4);
}

CATCH_TEST_CASE("names of registered objects are their own and fit a file") {
  Level level;
  OneWeightRun run(numbered_batches(1), ledger);
  run.trainer.register_state("a", level);
  const auto problem = [&](const std::string& name) {
    try {
      run.trainer.register_state(name, level);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CATCH_CHECK_THAT(problem("a"), Contains("[invalid-settings]") && Contains("another object has this name"));
  CATCH_CHECK_THAT(problem("a/b"), Contains("without a slash"));
  CATCH_CHECK_THAT(problem(""), Contains("give it a name"));
}

CATCH_TEST_CASE("an objective is trained, saved and restored with the model, and left out of exported weights") {
  const TemporaryDirectory directory;
  ObjectiveRun first;
  (void)first.trainer.train({.epochs = 1, .monitor = Monitor("validation/loss")},
                            {.checkpoint_dir = directory.path() / "checkpoints"});
  CATCH_CHECK(first.model.value() == 3);
  CATCH_CHECK(first.objective->offset.item<double>() == -3);
  CATCH_CHECK(first.objective->calls.item<std::int64_t>() == 3);  // evaluation ran in eval mode
  CATCH_CHECK(first.objective->is_training());

  ObjectiveRun second;
  (void)second.trainer.train({.epochs = 2}, {.checkpoint_dir = directory.path() / "checkpoints", .resume_from = latest});
  CATCH_CHECK(second.objective->offset.item<double>() == -6);
  CATCH_CHECK(second.objective->calls.item<std::int64_t>() == 6);

  second.trainer.save_model(directory.path() / "model.safetensors");
  const auto exported = read_safetensors(directory.path() / "model.safetensors").tensors;
  CATCH_CHECK(exported.size() == 1);
  CATCH_CHECK(exported.at(0).first == "w");
  CATCH_CHECK(first.trainer.weights(Weights::best).size() == 1);
}

CATCH_TEST_CASE("the best weights include the objective's") {
  ObjectiveRun run;
  (void)run.trainer.train({.max_steps = 1, .monitor = Monitor("validation/loss", {.direction = Direction::maximize}),
                           .restore_best = true});
  (void)run.trainer.train({.max_steps = 3, .monitor = Monitor("validation/loss", {.direction = Direction::maximize}),
                           .restore_best = true});
  CATCH_CHECK(run.model.value() == 1);
  CATCH_CHECK(run.objective->offset.item<double>() == -1);
  CATCH_CHECK(run.trainer.evaluate(Weights::best).at("validation").at("loss") == -2);
}

CATCH_TEST_CASE("a checkpoint without the objective does not fit a run with one") {
  const TemporaryDirectory directory;
  OneWeightRun plain(numbered_batches(3), ledger);
  (void)plain.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path()});
  ObjectiveRun run;
  CATCH_CHECK_THAT(train_error(run, {.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest}),
                   Contains("objective.offset"));
}

CATCH_TEST_CASE("a model with a part of the objective's name is refused beside an objective") {
  struct Net : torch::nn::Module {
    Net() { register_module("objective", std::make_shared<Offset>()); }
  } net;
  Offset objective;
  const Placement placement{at::kCPU, at::kDouble};
  CATCH_CHECK_NOTHROW(TrainedModules(net, nullptr, placement));
  CATCH_CHECK(thrown_id<ConfigError>([&] { TrainedModules(net, &objective, placement); }) == "invalid-settings");
}

CATCH_TEST_CASE("floating-point buffers are averaged on request") {
  struct Counting : torch::nn::Module {
    Counting() {
      w = register_parameter("w", torch::zeros({}, torch::kDouble));
      seen = register_buffer("seen", torch::zeros({}, torch::kDouble));
      calls = register_buffer("calls", torch::zeros({}, torch::kLong));
    }
    at::Tensor w, seen, calls;
  };
  const auto averaged = [](bool average_buffers) {
    Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
    Counting model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(2);
    const auto step = [](Counting& net, const at::Tensor&) -> StepOutput {
      net.seen.add_(4);
      net.calls.add_(1);
      return {.loss = net.w, .num_samples = 1};
    };
    Trainer trainer(accelerator, model, optimizer, source, step,
                    {.ema_decay = 0.5, .average_buffers = average_buffers});
    (void)trainer.train({.epochs = 1});
    std::map<std::string, double> values;
    for (const auto& [name, tensor] : trainer.weights(Weights::ema)) values[name] = tensor.item<double>();
    return values;
  };
  // The average begins with the buffer as the first window left it: 4, then (4 + 4) / 2, then (4 + 8) / 2.
  CATCH_CHECK(averaged(true) == std::map<std::string, double>{{"w", -1.25}, {"seen", 6}, {"calls", 2}});
  CATCH_CHECK(averaged(false) == std::map<std::string, double>{{"w", -1.25}, {"seen", 8}, {"calls", 2}});
}
