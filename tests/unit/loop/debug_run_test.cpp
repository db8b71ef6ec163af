#include "loop/debug_run.hpp"

#include <cstdlib>
#include <thread>

#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;

/// LOCKSTEP_DEBUG for as long as it lives.
struct DebugVariable {
  explicit DebugVariable(const char* value) { ::setenv("LOCKSTEP_DEBUG", value, 1); }
  ~DebugVariable() { ::unsetenv("LOCKSTEP_DEBUG"); }
};

std::vector<std::string> files_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) names.push_back(entry.path().filename().string());
  }
  return names;
}

/// Twelve batches to train on, three to evaluate, two to test, all written to tapes.
struct DebuggedRun {
  explicit DebuggedRun(RunLogger* logger = nullptr, std::int64_t accumulation = 4)
      : run(numbered_batches(12), recorded(trained),
            {.accumulation = accumulation,
             .evaluation_set = numbered_batches(3),
             .evaluation_step = recorded(evaluated),
             .logger = logger,
             .test_set = numbered_batches(2)}) {}

  Tape trained;
  Tape evaluated;
  OneWeightRun<Batches> run;
};

}  // namespace

CATCH_TEST_CASE("debug trains on one batch, evaluates and tests one of each set, and ends after one epoch") {
  DebuggedRun debugged;
  const TrainConfig config{.epochs = 5, .debug = true};
  CATCH_CHECK(debugged.run.trainer.planned_steps(config) == 15);
  CATCH_CHECK(debugged.run.trainer.updates_per_epoch() == 3);
  TrainState state;
  const auto console = captured_stderr([&] { state = debugged.run.trainer.train(config); });
  CATCH_CHECK(debugged.trained == Tape{0});
  CATCH_CHECK(debugged.evaluated == Tape{0, 0});
  CATCH_CHECK(state.epoch == 1);
  CATCH_CHECK(state.step == 1);
  CATCH_CHECK(state.end == EndReason::epochs);
  CATCH_CHECK(debugged.run.trainer.planned_steps(config) == 15);
  CATCH_CHECK_THAT(console, Contains("DEBUG: one batch"));
}

CATCH_TEST_CASE("debug with no epochs stays an evaluation only") {
  DebuggedRun debugged;
  const auto state = debugged.run.trainer.train({.epochs = 0, .debug = true});
  CATCH_CHECK(debugged.trained.empty());
  CATCH_CHECK(debugged.evaluated == Tape{0, 0});
  CATCH_CHECK(state.step == 0);
}

CATCH_TEST_CASE("debug where only updates end the run trains one epoch of one batch, and a schedule keeps its size") {
  DebuggedRun debugged(nullptr, 1);
  debugged.run.trainer.set_scheduler(WarmupDecay{.total_steps = 4, .decay = WarmupDecay::Decay::linear});
  const auto state = debugged.run.trainer.train({.max_steps = 100, .debug = true});
  CATCH_CHECK(state.step == 1);
  // The rest of the schedule is there: rates 1, 3/4, 2/4 and 1/4.
  debugged.run.trainer.train({.max_steps = 4});
  CATCH_CHECK(debugged.run.w() == -2.5);
}

CATCH_TEST_CASE("debug goes on from where the Trainer stands, inside an epoch too, and ends with that epoch") {
  DebuggedRun debugged(nullptr, 1);
  debugged.run.trainer.train({.max_steps = 5, .evaluate_every = {}});
  debugged.trained.clear();
  const auto state = debugged.run.trainer.train({.epochs = 3, .debug = true});
  CATCH_CHECK(debugged.trained == Tape{5});
  CATCH_CHECK(state.epoch == 1);
  const auto after = debugged.run.trainer.train({.epochs = 3, .debug = true});
  CATCH_CHECK(debugged.trained == Tape{5, 0});
  CATCH_CHECK(after.epoch == 2);
  CATCH_CHECK(debugged.run.trainer.train({.epochs = 2, .debug = true}).step == 7);
}

CATCH_TEST_CASE("debug resumes a checkpoint, checks it as ever, and writes nothing beside it") {
  const TemporaryDirectory folder;
  {
    DebuggedRun first(nullptr, 1);
    first.run.trainer.train({.max_steps = 2, .evaluate_every = {}, .background_saves = false}, {.checkpoint_dir = folder.path()});
  }
  const auto before = files_in(folder.path());
  DebuggedRun debugged(nullptr, 1);
  const auto state = debugged.run.trainer.train({.epochs = 2, .keep_checkpoints = 1, .debug = true},
                                                {.checkpoint_dir = folder.path(), .resume_from = latest});
  CATCH_CHECK(debugged.trained == Tape{2});
  CATCH_CHECK(state.step == 3);
  CATCH_CHECK(files_in(folder.path()) == before);
}

CATCH_TEST_CASE("a logger that stands when debug begins adds nothing to its files, and goes on afterwards") {
  const TemporaryDirectory folder;
  RunLogger logger(folder.path() / "run", {.quiet = true});
  DebuggedRun debugged(&logger, 1);
  const auto before = files_in(folder.path());
  debugged.run.trainer.train({.epochs = 1, .debug = true});
  CATCH_CHECK(files_in(folder.path()) == before);
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder.path())) {
    if (file.path().filename() == "metrics.jsonl") CATCH_CHECK(std::filesystem::file_size(file) == 0);
  }
  debugged.run.trainer.train({.epochs = 2});
  CATCH_CHECK(std::filesystem::file_size(folder.path() / "run" / "metrics.jsonl") > 0);
}

CATCH_TEST_CASE("LOCKSTEP_DEBUG debugs without a change to the program, and leaves no file and no folder") {
  const TemporaryDirectory folder;
  const DebugVariable variable("on");
  RunLogger logger(folder.path() / "run", {.quiet = true});
  DebuggedRun debugged(&logger);
  const auto state = debugged.run.trainer.train({.epochs = 3}, {.checkpoint_dir = folder.path() / "checkpoints"});
  CATCH_CHECK(state.step == 1);
  CATCH_CHECK(std::filesystem::is_empty(folder.path()));
}

CATCH_TEST_CASE("LOCKSTEP_DEBUG with a value that says nothing ends train()") {
  const DebugVariable variable("maybe");
  DebuggedRun debugged;
  CATCH_CHECK_THROWS_WITH(debugged.run.trainer.train({.epochs = 1}), Contains("invalid-debug-variable") && Contains("maybe"));
}

CATCH_TEST_CASE("debug loads batches in the thread that trains") {
  struct ThreadIds {
    [[nodiscard]] std::optional<std::size_t> size() const { return 8; }
    [[nodiscard]] at::Tensor get(std::int64_t) const {
      return torch::full({}, std::this_thread::get_id() == main ? 1.0 : 0.0, torch::kDouble);
    }
    std::thread::id main = std::this_thread::get_id();
  };
  for (const bool debug : {true, false}) {
    Tape tape;
    DataLoader loader(ThreadIds{}, {.batch_size = 2, .workers = 2});
    OneWeightRun<decltype(loader)> run(loader, recorded(tape));
    run.trainer.train({.epochs = 1, .debug = debug});
    CATCH_CHECK(tape == (debug ? Tape{1, 1} : Tape(8, 0)));
  }
}

CATCH_TEST_CASE("debug gives each of two ranks one batch") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Tape tape;
    OneWeightRun<Batches> run(numbered_batches(12), recorded(tape),
                              {.accumulation = 2, .evaluation_set = numbered_batches(5), .evaluation_step = recorded(tape),
                               .launch = rank.launch()});
    run.trainer.train({.epochs = 4, .debug = true}, {.checkpoint_dir = rank.directory / "checkpoints"});
    std::string text = std::filesystem::exists(rank.directory / "checkpoints") ? "saved" : "";
    for (const double target : tape) text += " " + std::to_string(static_cast<int>(target));
    return text;
  });
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{" 0 0", " 1 1"});
}

CATCH_TEST_CASE("ranks of which one alone debugs are told so") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    OneWeightRun<Batches> run(numbered_batches(4), ledger, {.launch = rank.launch()});
    run.trainer.train({.epochs = 1, .debug = rank.number == 1});
    return "trained";
  });
  CATCH_CHECK(ranks.error_ids() == std::vector<std::string>{"ranks-differ", "ranks-differ"});
  CATCH_CHECK_THAT(ranks[0].text, Contains("debug"));
}

CATCH_TEST_CASE("overfitting gives every window the first batches of epoch 0, in epochs of the usual length") {
  Tape tape;
  auto loader = numbered_loader(5, {.batch_size = 1, .shuffle = true, .seed = 3});
  {
    OneWeightRun<decltype(loader)> run(loader, recorded(tape), {.accumulation = 2});
    run.trainer.train({.epochs = 1});
  }
  const std::vector<double> first(tape.begin(), tape.begin() + 2);
  tape.clear();
  OneWeightRun<decltype(loader)> run(loader, recorded(tape), {.accumulation = 2});
  TrainState state;
  const auto console =
      captured_stderr([&] { state = run.trainer.train({.epochs = 2, .overfit_one_batch = true}); });
  CATCH_CHECK(tape == Tape{first[0], first[1], first[0], first[1], first[0], first[0], first[1], first[0], first[1], first[0]});
  CATCH_CHECK(state.step == 6);
  CATCH_CHECK_THAT(console, Contains("OVERFIT") && Contains("first 2 batches"));
}

CATCH_TEST_CASE("a model that can learn overfits one batch, and goes on with it after a resume") {
  const TemporaryDirectory folder;
  const auto train = [&](std::int64_t epochs, const TrainOptions& options) {
    OneWeightRun<Batches> run(batches({{4}, {9}, {2}}), follow);
    run.trainer.train({.epochs = epochs, .overfit_one_batch = true}, options);
    return run.w();
  };
  CATCH_CHECK(train(1, {.checkpoint_dir = folder.path()}) == 4);
  CATCH_CHECK(train(2, {.checkpoint_dir = folder.path(), .resume_from = latest}) == 4);
}

CATCH_TEST_CASE("each of two ranks overfits its own first batches") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Tape tape;
    OneWeightRun<Batches> run(numbered_batches(6), recorded(tape), {.launch = rank.launch()});
    run.trainer.train({.epochs = 1, .overfit_one_batch = true});
    std::string text;
    for (const double target : tape) text += " " + std::to_string(static_cast<int>(target));
    return text;
  });
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{" 0 0 0", " 1 1 1"});
}

}  // namespace lockstep::test
