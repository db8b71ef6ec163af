#include "lockstep/loop/hooks.hpp"

#include <stdexcept>

#include "support/captured_stderr.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
using Words = std::vector<std::string>;

namespace {

constexpr auto every_step = Interval{1, Interval::Unit::step};

std::string number(double value) { return std::to_string(static_cast<std::int64_t>(value)); }

/// Writes down every call.
struct Diary {
  void run_begin(Run&) { add("run_begin"); }
  void epoch_begin(Run& run) { add("epoch_begin " + number(run.state().epoch)); }
  void window_begin(Run& run) { add("window_begin " + number(run.state().step)); }
  void after_loss(Run&, const StepOutput& output) { add("after_loss " + number(output.loss.item<double>())); }
  void before_sync(Run&) { add("before_sync"); }
  void before_clip(Run&) { add("before_clip"); }
  void before_update(Run&) { add("before_update"); }
  void after_update(Run& run, const UpdateOutcome& outcome) {
    add("after_update " + number(run.state().step) +
        (outcome.result == UpdateResult::applied ? " " + number(outcome.gradient_norm) : " skipped"));
  }
  void epoch_end(Run& run) { add("epoch_end " + number(run.state().epoch)); }
  void evaluation_begin(Run&, Weights weights) { add(weights == Weights::raw ? "evaluation_begin" : "evaluation_begin ema"); }
  void evaluation_batch_end(Run&, const std::string& set, const StepOutput& output) {
    add("evaluation_batch_end " + set + " " + number(output.loss.item<double>()));
  }
  void evaluation_end(Run&, Weights, const EvaluationResults& results) {
    add("evaluation_end " + number(results.at("validation").at("loss")));
  }
  void checkpoint_saved(Run&, const std::filesystem::path& folder) { add("saved " + folder.filename().string()); }
  void stop(Run&, const std::string& reason) { add("stop " + reason); }
  void error(Run&, const std::exception_ptr& error) { add("error " + text_of(error)); }
  void run_end(Run& run) { add("run_end " + number(run.state().step)); }

  void add(std::string word) { words.push_back(std::move(word)); }

  Words words;
};

HookFunctions at_update(std::function<void(Run&, const UpdateOutcome&)> function) {
  return {.after_update = std::move(function)};
}

}  // namespace

CATCH_TEST_CASE("hooks are called at every point of a run, in the order of docs/hooks.md") {
  const TemporaryDirectory folder;
  Diary diary;
  OneWeightRun run(batches({{1}, {2}, {3}}), ledger,
                   {.accumulation = 2, .evaluation_set = batches({{0}, {0}}), .hooks = {diary}});
  run.trainer.train({.epochs = 1, .background_saves = false}, {.checkpoint_dir = folder.path()});
  CATCH_CHECK(diary.words == Words{"run_begin",
                                   "epoch_begin 0",
                                   "window_begin 0",
                                   "after_loss 0",
                                   "after_loss 0",
                                   "before_sync",
                                   "before_clip",
                                   "before_update",
                                   "after_update 1 1",
                                   "window_begin 1",
                                   "after_loss -1",
                                   "before_sync",
                                   "before_clip",
                                   "before_update",
                                   "after_update 2 1",
                                   "epoch_end 1",
                                   "evaluation_begin",
                                   "evaluation_batch_end validation -2",
                                   "evaluation_batch_end validation -2",
                                   "evaluation_end -2",
                                   "saved step-00000002",
                                   "run_end 2"});
}

CATCH_TEST_CASE("hooks of one point are called in list order, functions and temporaries among them") {
  std::string calls;
  struct Letter {
    void window_begin(Run&) { *calls += letter; }
    char letter;
    std::string* calls;
  };
  Letter a{'a', &calls};
  const HookFunctions b{.window_begin = [&](Run&) { calls += 'b'; }};
  OneWeightRun run(numbered_batches(2), ledger, {.hooks = {a, b, Letter{'c', &calls}}});
  run.trainer.train({.epochs = 1});
  CATCH_CHECK(calls == "abcabc");
}

CATCH_TEST_CASE("a hook that asks for a stop ends the run after the update under way") {
  Diary diary;
  const auto hook = at_update([](Run& run, const UpdateOutcome&) {
    if (run.state().step == 2) run.request_stop("enough");
    if (run.state().step == 2) run.request_stop("not the first reason");
  });
  OneWeightRun run(numbered_batches(5), ledger, {.hooks = hook});
  const auto state = run.trainer.train({.epochs = 1});
  CATCH_CHECK(state.step == 2);
  CATCH_CHECK(state.end == EndReason::stop_request);
  CATCH_CHECK(state.stop_reason == "enough");
  CATCH_CHECK(run.trainer.train({.max_steps = 2}).stop_reason == std::nullopt);
}

CATCH_TEST_CASE("a stop, and an end, without a reason count as well") {
  const auto stops = at_update([](Run& run, const UpdateOutcome&) { run.request_stop(""); });
  const auto stopped = OneWeightRun(numbered_batches(5), ledger, {.hooks = stops}).trainer.train({.epochs = 1});
  CATCH_CHECK(stopped.step == 1);
  CATCH_CHECK(stopped.end == EndReason::stop_request);
  CATCH_CHECK(stopped.stop_reason == "");
  const auto ends = at_update([](Run& run, const UpdateOutcome&) { run.request_end(""); });
  const auto ended = OneWeightRun(numbered_batches(5), ledger, {.hooks = ends}).trainer.train({.epochs = 1});
  CATCH_CHECK(ended.step == 1);
  CATCH_CHECK(ended.end == EndReason::early_stop);
}

CATCH_TEST_CASE("a stop that an evaluation's end asks for comes before the next update") {
  struct : Diary {
    void evaluation_end(Run& run, Weights, const EvaluationResults&) { run.request_stop("good enough"); }
  } hook;
  OneWeightRun run(numbered_batches(5), ledger, {.evaluation_set = batches({{0}}), .hooks = {hook}});
  CATCH_CHECK(run.trainer.train({.epochs = 1, .evaluate_every = every_step}).step == 1);
  CATCH_CHECK(std::count(hook.words.begin(), hook.words.end(), "stop good enough") == 1);
}

CATCH_TEST_CASE("a hook that ends the run has it evaluated, tested and saved as final, and a resume goes on") {
  const TemporaryDirectory folder;
  RecordedLog log;
  Diary diary;
  const auto hook = at_update([](Run& run, const UpdateOutcome&) {
    if (run.state().step == 2) run.request_end("good enough");
    if (run.state().step == 2) run.request_end("not the first reason");
  });
  OneWeightRun run(numbered_batches(5), ledger,
                   {.evaluation_set = batches({{0}}),
                    .logger = log.logger(),
                    .test_set = batches({{0}}),
                    .hooks = {HookFunctions{.evaluation_end = [&](Run& view, Weights, const EvaluationResults& results) {
                                diary.add(results.begin()->first + " " + number(view.state().step));
                              }},
                              hook}});
  const auto state = run.trainer.train({.epochs = 1}, {.checkpoint_dir = folder.path()});
  CATCH_CHECK(state.step == 2);
  CATCH_CHECK(state.end == EndReason::early_stop);
  CATCH_CHECK(state.stop_reason == std::nullopt);
  CATCH_CHECK(diary.words == Words{"validation 2", "test 2"});
  CATCH_CHECK(run.trainer.test_results().has_value());
  CATCH_CHECK(std::filesystem::exists(folder.path() / "final"));
  CATCH_CHECK(log.events().back().event == "end");
  CATCH_CHECK(log.events().back().text == "early_stop: good enough");

  OneWeightRun resumed(numbered_batches(5), ledger, {.evaluation_set = batches({{0}})});
  const auto end = resumed.trainer.train({.epochs = 1}, {.checkpoint_dir = folder.path(), .resume_from = latest});
  CATCH_CHECK(end.step == 5);
  CATCH_CHECK(end.end == EndReason::epochs);
}

CATCH_TEST_CASE("a limit that is reached at the same update is the reason for the end, and a stop comes before both") {
  const bool stops = GENERATE(false, true);
  RecordedLog log;
  const auto hook = at_update([&](Run& run, const UpdateOutcome&) {
    run.request_end("good enough");
    if (stops) run.request_stop("interrupted");
  });
  OneWeightRun run(numbered_batches(5), ledger, {.logger = log.logger(), .hooks = hook});
  const auto state = run.trainer.train({.max_steps = 1});
  CATCH_CHECK(state.end == (stops ? EndReason::stop_request : EndReason::max_steps));
  CATCH_CHECK(log.events().back().text == (stops ? "interrupted" : "max_steps"));
}

CATCH_TEST_CASE("a hook asks for an evaluation of all sets and for a checkpoint at an update of its choice") {
  const TemporaryDirectory folder;
  Words words;
  const HookFunctions hook{
      .after_update =
          [](Run& run, const UpdateOutcome&) {
            if (run.state().step == 1) run.request_evaluation();
            if (run.state().step == 2) run.request_save();
          },
      .evaluation_end = [&](Run& run, Weights, const EvaluationResults&) { words.push_back("evaluated " + number(run.state().step)); },
      .checkpoint_saved = [&](Run&, const std::filesystem::path& path) { words.push_back(path.filename()); }};
  OneWeightRun run(numbered_batches(4), ledger, {.evaluation_set = batches({{0}}), .hooks = hook});
  run.trainer.train({.epochs = 1, .checkpoint_every = {}, .background_saves = false}, {.checkpoint_dir = folder.path()});
  CATCH_CHECK(words == Words{"evaluated 1", "step-00000002", "evaluated 4", "step-00000004"});
}

CATCH_TEST_CASE("before_clip sees the mean gradient and what it changes is measured, clipped and used") {
  // Two microbatches of 1 and 3 samples with gradients 1 and 1: the mean gradient is 1.
  double seen = 0, used = 0, norm = 0;
  std::optional<OneWeightRun<Batches>> run;
  const HookFunctions hook{.before_clip =
                               [&](Run&) {
                                 seen = run->model.w.grad().item<double>();
                                 run->model.w.mutable_grad().mul_(6);
                               },
                           .before_update = [&](Run&) { used = run->model.w.grad().item<double>(); },
                           .after_update = [&](Run&, const UpdateOutcome& outcome) { norm = outcome.gradient_norm; }};
  const auto step = [](OneWeight& model, const at::Tensor& batch) -> StepOutput {
    return {.loss = model.w * 1, .num_samples = batch.numel()};
  };
  run.emplace(batches({{0}, {0, 0, 0}}), step, OneWeightSettings{.accumulation = 2, .hooks = hook});
  run->trainer.train({.epochs = 1, .max_grad_norm = 2});
  CATCH_CHECK(seen == 1);
  CATCH_CHECK(norm == 6);
  CATCH_CHECK(used == Approx(2).epsilon(1e-6));
  CATCH_CHECK(run->w() == -used);
}

CATCH_TEST_CASE("hooks that only look change no bit of a training") {
  const auto train = [](Hooks hooks, std::optional<double> max_norm) {
    torch::manual_seed(1);
    torch::nn::Linear model(5, 3);
    Accelerator accelerator({.gradient_accumulation_steps = 3, .device = at::kCPU});
    AdamW optimizer(weight_decay_groups(*model, 0.01), {.lr = 0.1});
    DataLoader loader(TensorDataset(torch::randn({40, 5}), torch::randn({40, 3})), {.batch_size = 4, .shuffle = true});
    const auto step = [](torch::nn::LinearImpl& net, const Example& batch) -> StepOutput {
      return {.loss = at::mse_loss(net.forward(batch.data), batch.target), .num_samples = batch.data.size(0)};
    };
    Trainer trainer(accelerator, model, optimizer, loader, step, {.hooks = std::move(hooks)});
    trainer.train({.epochs = 3, .max_grad_norm = max_norm});
    return torch::cat({model->weight.flatten(), model->bias}).detach().clone();
  };
  Diary diary;
  CATCH_CHECK(torch::equal(train({}, {}), train({diary}, {})));
  CATCH_CHECK(std::count(diary.words.begin(), diary.words.end(), "before_clip") == 3 * 4);
  // Without a look at the unclipped gradient, it is still divided once.
  std::int64_t looks = 0;
  const HookFunctions hook{.before_sync = [&](Run&) { ++looks; }, .before_update = [&](Run&) { ++looks; }};
  CATCH_CHECK(torch::equal(train({}, 0.1), train({hook}, 0.1)));
  CATCH_CHECK(looks == 2 * 3 * 4);
}

CATCH_TEST_CASE("a skipped window is told to after_update, and not to before_clip and before_update") {
  Diary diary;
  const auto step = [](OneWeight& model, const at::Tensor& batch) -> StepOutput {
    return {.loss = model.w, .num_samples = batch.numel() - 1};
  };
  OneWeightRun run(batches({{1}}), step, {.hooks = {diary}});
  run.trainer.train({.epochs = 1});
  CATCH_CHECK(diary.words == Words{"run_begin", "epoch_begin 0", "window_begin 0", "after_loss 0", "before_sync",
                                   "after_update 0 skipped", "epoch_end 1", "run_end 0"});
}

CATCH_TEST_CASE("a hook is told of the error that ends a run, and the error goes on; its own is a warning") {
  Diary diary;
  const HookFunctions failing{.error = [](Run&, const std::exception_ptr&) { throw std::runtime_error("mine"); }};
  const auto step = [](OneWeight&, const at::Tensor&) -> StepOutput { throw std::runtime_error("no data"); };
  OneWeightRun run(numbered_batches(2), step, {.hooks = {failing, diary}});
  const auto warnings = captured_stderr([&] { CATCH_CHECK_THROWS_WITH(run.trainer.train({.epochs = 1}), "no data"); });
  CATCH_CHECK(diary.words.back() == "error no data");
  CATCH_CHECK_THAT(warnings, Contains("has failed itself: mine"));
}

CATCH_TEST_CASE("an error of a hook ends the run, and the state before the window stays") {
  const HookFunctions hook{.before_update = [](Run& run) {
    if (run.state().step == 1) throw std::runtime_error("a hook's");
  }};
  OneWeightRun run(numbered_batches(3), ledger, {.hooks = hook});
  CATCH_CHECK_THROWS_WITH(run.trainer.train({.epochs = 1}), "a hook's");
  CATCH_CHECK(run.w() == -1);
  CATCH_CHECK(run.trainer.state().step == 1);
}

CATCH_TEST_CASE("the state of a hook is in the checkpoint and comes back") {
  struct Counter {
    [[nodiscard]] std::string name() const { return "counter"; }
    [[nodiscard]] NamedTensors state() const { return {{"updates", torch::tensor(updates)}}; }
    void load_state(const NamedTensors& state) { updates = state.at(0).second.item<std::int64_t>(); }
    void after_update(Run&, const UpdateOutcome&) { ++updates; }
    std::int64_t updates = 0;
  };
  const TemporaryDirectory folder;
  const auto train = [&](std::int64_t epochs) {
    Counter counter;
    OneWeightRun run(numbered_batches(3), ledger, {.hooks = {counter}});
    run.trainer.train({.epochs = epochs}, {.checkpoint_dir = folder.path(), .resume_from = latest});
    return counter.updates;
  };
  CATCH_CHECK(train(1) == 3);
  CATCH_CHECK(train(3) == 9);
}

CATCH_TEST_CASE("a hook sees the settings of the train() call that is under way") {
  std::optional<std::int64_t> seen;
  const auto hook = at_update([&](Run& run, const UpdateOutcome&) { seen = run.config().max_steps; });
  OneWeightRun run(numbered_batches(5), ledger, {.hooks = hook});
  run.trainer.train({.max_steps = 1});
  CATCH_CHECK(seen == 1);
  run.trainer.train({.max_steps = 2});
  CATCH_CHECK(seen == 2);
}

CATCH_TEST_CASE("a hook's values are an event of the log, with the run's step, epoch and samples") {
  RecordedLog log;
  const auto hook = at_update([](Run& run, const UpdateOutcome& outcome) { run.log({{"mine", outcome.gradient_norm}}); });
  OneWeightRun run(batches({{0}, {0}, {0}}), follow, {.accumulation = 2, .logger = log.logger(), .hooks = hook});
  run.trainer.train({.epochs = 1});
  CATCH_REQUIRE(log.count("values") == 2);
  const auto event = std::find_if(log.events().begin(), log.events().end(),
                                  [](const LogEvent& e) { return e.event == "values" && e.step == 2; });
  CATCH_CHECK(event->epoch == 1);
  CATCH_CHECK(event->samples == 3);
  CATCH_CHECK(event->values == std::vector<std::pair<std::string, double>>{{"mine", 0}});
}

CATCH_TEST_CASE("a hook's line for people is on the console, and its values ask for no logger") {
  const HookFunctions hook{.run_end = [](Run& run) {
    run.log({{"mine", 1}});
    run.info("all is well");
  }};
  OneWeightRun run(numbered_batches(1), ledger, {.hooks = hook});
  const auto lines = captured_stderr([&] { run.trainer.train({.epochs = 1, .checkpoint_every = {}}); });
  CATCH_CHECK_THAT(lines, Contains("all is well") && !Contains("warning"));
}

CATCH_TEST_CASE("only the main process logs what hooks on all ranks give") {
  const TemporaryDirectory folder;
  const auto ranks = run_ranks(2, [&](Rank& rank) {
    const HookFunctions hook{.run_end = [](Run& run) {
      run.log({{"mine", 1}});
      run.info("all is well");
    }};
    RunLogger logger(folder.path() / "run", {.is_main_process = rank.number == 0, .quiet = true});
    OneWeightRun run(numbered_batches(2), ledger, {.logger = &logger, .launch = rank.launch(), .hooks = hook});
    const auto lines = captured_stderr([&] { run.trainer.train({.epochs = 1, .checkpoint_every = {}}); });
    return std::to_string(run.trainer.state().step) + lines;
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.same_text() == "1");
  const auto events = read_run_history(folder.path() / "run" / "metrics.jsonl");
  CATCH_CHECK(std::count_if(events.begin(), events.end(), [](const auto& e) { return e.event == "values"; }) == 1);
}

CATCH_TEST_CASE("of a hook with the base class Hook those methods are called that it overrides, and no others") {
  struct Counter : Hook {
    void after_update(Run&, const UpdateOutcome&) override { ++updates; }
    int updates = 0;
  } counter;
  const Hooks hooks{counter};
  CATCH_CHECK(hooks.points().after_update.size() == 1);
  CATCH_CHECK(hooks.points().window_begin.empty());
  CATCH_CHECK(hooks.points().run_end.empty());
  OneWeightRun run(numbered_batches(3), ledger, {.hooks = hooks});
  run.trainer.train({.epochs = 1});
  CATCH_CHECK(counter.updates == 3);
}

CATCH_TEST_CASE("a hook that asks on one rank alone makes all ranks stop, evaluate and save together") {
  const TemporaryDirectory folder;
  const auto ranks = run_ranks(2, [&](Rank& rank) {
    Diary diary;
    const auto hook = at_update([&](Run& run, const UpdateOutcome&) {
      if (rank.number != 1) return;
      if (run.state().step == 1) run.request_evaluation();
      if (run.state().step == 2) run.request_stop("rank 1 has seen enough");
    });
    OneWeightRun run(numbered_batches(20), ledger,
                     {.evaluation_set = batches({{0}, {0}}), .launch = rank.launch(), .hooks = {diary, hook}});
    const auto state = run.trainer.train({.epochs = 1}, {.checkpoint_dir = folder.path()});
    return std::to_string(state.step) + " " + *state.stop_reason + " " +
           number(std::count(diary.words.begin(), diary.words.end(), "evaluation_end -1")) + " " + diary.words.back();
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.same_text() == "2 rank 1 has seen enough 1 run_end 2");
}

CATCH_TEST_CASE("a hook that ends the run on one rank alone ends it on all, with the final evaluation and `final`") {
  const TemporaryDirectory folder;
  const auto ranks = run_ranks(2, [&](Rank& rank) {
    Diary diary;
    const auto hook = at_update([&](Run& run, const UpdateOutcome&) {
      if (rank.number == 1 && run.state().step == 2) run.request_end("rank 1 has seen enough");
    });
    RunLogger logger(folder.path() / "run", {.is_main_process = rank.number == 0, .quiet = true});
    OneWeightRun run(numbered_batches(20), ledger,
                     {.evaluation_set = batches({{0}, {0}}),
                      .logger = &logger,
                      .launch = rank.launch(),
                      .hooks = {diary, hook}});
    const auto state = run.trainer.train({.epochs = 1}, {.checkpoint_dir = folder.path() / "checkpoints"});
    return std::to_string(state.step) + " " + to_string(state.end) + " " + state.stop_reason.value_or("unset") + " " +
           number(std::count(diary.words.begin(), diary.words.end(), "evaluation_end -2"));
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.same_text() == "2 early_stop unset 1");
  CATCH_CHECK(std::filesystem::exists(folder.path() / "checkpoints" / "final"));
  CATCH_CHECK(read_run_history(folder.path() / "run" / "metrics.jsonl").back().text == "early_stop: rank 1 has seen enough");
}

CATCH_TEST_CASE("a hook that fails on one rank ends all of them, by name") {
  const auto ranks = run_ranks(2, [&](Rank& rank) -> std::string {
    const HookFunctions hook{.epoch_end = [&](Run&) {
      if (rank.number == 1) throw std::runtime_error("trouble in a hook");
    }};
    OneWeightRun run(numbered_batches(4), ledger, {.launch = rank.launch(), .hooks = hook});
    run.trainer.train({.epochs = 2});
    return "trained";
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK_THAT(ranks.report(), Contains("trouble in a hook") && Contains("rank-failed"));
  CATCH_CHECK_THAT(ranks.report(), !Contains("trained"));
}

CATCH_TEST_CASE("ranks with different hooks are told before the first batch") {
  const auto ranks = run_ranks(2, [&](Rank& rank) -> std::string {
    Diary diary;
    OneWeightRun run(numbered_batches(4), ledger,
                     {.launch = rank.launch(), .hooks = rank.number == 0 ? Hooks(diary) : Hooks()});
    run.trainer.train({.epochs = 1});
    return "trained";
  });
  CATCH_CHECK(ranks.error_ids() == Words{"ranks-differ", "ranks-differ"});
}

CATCH_TEST_CASE("a run's end has its final results: the state, the history, and what the test gave") {
  std::vector<std::string> seen;
  HookFunctions hook;
  const auto note = [&seen](Run& run) {
    const auto& test = run.test_results();
    seen.push_back(std::to_string(run.state().step) + " " + std::to_string(run.history().size()) + " " +
                   (test ? std::to_string(static_cast<int>(test->at("test").at("loss"))) : "none"));
  };
  hook.run_begin = note;
  hook.epoch_end = note;
  hook.run_end = note;
  OneWeightRun run(numbered_batches(2), ledger, {.test_set = batches({{0}}), .hooks = hook});
  (void)run.trainer.train({.epochs = 1, .checkpoint_every = {}});
  CATCH_CHECK(seen == std::vector<std::string>{"0 0 none", "2 1 none", "2 1 -2"});
  StopRequest stop;
  stop.request("enough");
  (void)run.trainer.train({.epochs = 2, .checkpoint_every = {}}, {.stop = &stop});
  CATCH_CHECK(seen.back() == "2 1 none");
}
