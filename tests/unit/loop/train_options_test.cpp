// What one train() call reads and writes: checkpoints, resuming, and what is refused.
#include "lockstep/loop/train_options.hpp"

#include <list>

#include "files/checkpoint.hpp"
#include "files/checkpoint_writer.hpp"
#include "loop/torch_build.hpp"
#include "support/captured_stderr.hpp"
#include "support/file_text.hpp"
#include "support/fixtures.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

constexpr auto every_step = Interval{1, Interval::Unit::step};
using Folders = std::vector<std::string>;

/// The folder that a name leads to; "" if there is no such name.
std::string target(const fs::path& root, const char* name) {
  return fs::is_symlink(root / name) ? fs::read_symlink(root / name).string() : "";
}

}  // namespace

// ---- options that would be ignored ----

CATCH_TEST_CASE("an option that would be ignored is refused") {
  OneWeightRun run(numbered_batches(1), ledger);
  SaveRequest save;
  const auto text =
      train_error(run, {.epochs = 1, .keep_checkpoints = 1, .skip_busy_saves = true, .fail_on_save_error = true},
                  {.resume_from = latest, .save_now = &save, .metadata = {{"a", "b"}}, .keep_schedule = true});
  CATCH_CHECK_THAT(text, Contains("[invalid-settings]") &&
                             Contains("keep_checkpoints is set but checkpoint_dir is not") &&
                             Contains("skip_busy_saves is set but checkpoint_dir is not") &&
                             Contains("fail_on_save_error is set but checkpoint_dir is not") &&
                             Contains("save_now is set but checkpoint_dir is not") &&
                             Contains("metadata is set but checkpoint_dir is not") &&
                             Contains("resume_from = latest is set but checkpoint_dir is not") &&
                             Contains("keep_schedule is set without a schedule"));
}

// ---- names and retention ----

CATCH_TEST_CASE("last is the newest, best the best, and final exists after a normal end alone") {
  const TemporaryDirectory directory;
  const auto& root = directory.path();
  StopRequest stop;
  OneWeightRun run(numbered_batches(5),
                   [&](OneWeight& model, const at::Tensor& batch) {
                     if (model.value() == -2) stop.request("test");
                     return ledger(model, batch);
                   },
                   {.evaluation_set = numbered_batches(1), .evaluation_step = script({3, 1, 2, 2, 2})});
  const TrainConfig config{.epochs = 1,
                           .evaluate_every = every_step,
                           .checkpoint_every = std::nullopt,
                           .monitor = Monitor("validation/score")};
  (void)run.trainer.train(config, {.checkpoint_dir = root, .stop = &stop});
  CATCH_CHECK(checkpoint_folders(root) == Folders{"step-00000001", "step-00000002", "step-00000003"});
  CATCH_CHECK(target(root, "last") == "step-00000003");
  CATCH_CHECK(target(root, "best") == "step-00000002");
  CATCH_CHECK(target(root, "final").empty());

  stop.clear();
  (void)run.trainer.train(config, {.checkpoint_dir = root, .stop = &stop});
  CATCH_CHECK(target(root, "last") == "step-00000005");
  CATCH_CHECK(target(root, "best") == "step-00000002");
  CATCH_CHECK(target(root, "final") == "step-00000005");
}

CATCH_TEST_CASE("a run that goes on beyond its end takes the name final away until it ends again") {
  const TemporaryDirectory directory;
  const auto& root = directory.path();
  OneWeightRun first(numbered_batches(2), ledger);
  (void)first.trainer.train({.epochs = 1}, {.checkpoint_dir = root});
  CATCH_CHECK(target(root, "final") == "step-00000002");

  bool seen_without_final = false;
  OneWeightRun second(numbered_batches(2), [&](OneWeight& model, const at::Tensor& batch) {
    seen_without_final = target(root, "final").empty();
    return ledger(model, batch);
  });
  (void)second.trainer.train({.epochs = 2}, {.checkpoint_dir = root, .resume_from = latest});
  CATCH_CHECK(seen_without_final);
  CATCH_CHECK(target(root, "final") == "step-00000004");
}

CATCH_TEST_CASE("a run that is over already stays as it is when it is resumed") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(2), ledger);
  (void)first.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path()});
  OneWeightRun second(numbered_batches(2), ledger);
  const auto state =
      second.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(state.step == 2);
  CATCH_CHECK(state.end == EndReason::epochs);
  CATCH_CHECK(second.w() == -2.0);
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000002"});
  CATCH_CHECK(target(directory.path(), "final") == "step-00000002");
}

CATCH_TEST_CASE("a state that is saved is recognised through a relative path and through a link") {
  const TemporaryDirectory directory;
  const auto before = fs::current_path();
  fs::current_path(directory.path());
  fs::create_directory_symlink("real", "link");
  OneWeightRun first(numbered_batches(2), ledger);
  (void)first.trainer.train({.epochs = 1}, {.checkpoint_dir = "real"});
  for (const fs::path root : {"real", "./real", "link"}) {
    OneWeightRun second(numbered_batches(2), ledger);
    (void)second.trainer.train({.epochs = 1}, {.checkpoint_dir = root, .resume_from = latest});
    OneWeightRun third(numbered_batches(2), ledger);
    (void)third.trainer.train({.epochs = 1}, {.checkpoint_dir = root, .resume_from = root / "last"});
  }
  fs::current_path(before);
  CATCH_CHECK(checkpoint_folders(directory.path() / "real") == Folders{"step-00000002"});
}

CATCH_TEST_CASE("keep_checkpoints keeps the newest besides those with a name") {
  const TemporaryDirectory directory;
  OneWeightRun run(numbered_batches(6), ledger,
                   {.evaluation_set = numbered_batches(1), .evaluation_step = script({3, 1, 2, 2, 2, 2})});
  (void)run.trainer.train({.epochs = 1,
                           .evaluate_every = every_step,
                           .checkpoint_every = every_step,
                           .keep_checkpoints = 2,
                           .monitor = Monitor("validation/score")},
                          {.checkpoint_dir = directory.path()});
  CATCH_CHECK(checkpoint_folders(directory.path()) ==
              Folders{"step-00000002", "step-00000005", "step-00000006"});
}

CATCH_TEST_CASE("checkpoints are written at their interval and at the end, each state once") {
  const auto folders = [](std::optional<Interval> interval) {
    const TemporaryDirectory directory;
    OneWeightRun run(numbered_batches(3), ledger);
    (void)run.trainer.train({.epochs = 2, .checkpoint_every = interval},
                            {.checkpoint_dir = directory.path()});
    return checkpoint_folders(directory.path());
  };
  CATCH_CHECK(folders(Interval{2, Interval::Unit::step}) ==
              Folders{"step-00000002", "step-00000004", "step-00000006"});
  CATCH_CHECK(folders(Interval{4, Interval::Unit::step}) == Folders{"step-00000004", "step-00000006"});
  CATCH_CHECK(folders(Interval{1, Interval::Unit::epoch}) == Folders{"step-00000003", "step-00000006"});
  CATCH_CHECK(folders(std::nullopt) == Folders{"step-00000006"});
}

CATCH_TEST_CASE("metadata stands in every manifest as it was given") {
  const TemporaryDirectory directory;
  OneWeightRun run(numbered_batches(1), ledger);
  (void)run.trainer.train({.epochs = 1},
                          {.checkpoint_dir = directory.path(), .metadata = {{"author", "Ada \"L.\""}}});
  CATCH_CHECK(read_checkpoint(directory.path() / "last").manifest.at("metadata") ==
              nlohmann::json{{"author", "Ada \"L.\""}});
}

CATCH_TEST_CASE("a checkpoint folder is locked while a run writes to it") {
  const TemporaryDirectory directory;
  std::string inner_error;
  OneWeightRun outer(numbered_batches(1), [&](OneWeight& model, const at::Tensor& batch) {
    OneWeightRun inner(numbered_batches(1), ledger);
    inner_error = train_error(inner, {.epochs = 1}, {.checkpoint_dir = directory.path()});
    return ledger(model, batch);
  });
  (void)outer.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path()});
  CATCH_CHECK_THAT(inner_error, Contains("[checkpoint-directory-in-use]"));
  OneWeightRun later(numbered_batches(1), ledger);
  CATCH_CHECK_NOTHROW(
      later.trainer.train({.epochs = 2}, {.checkpoint_dir = directory.path(), .resume_from = latest}));
}

// ---- resuming ----

CATCH_TEST_CASE("latest in an empty or absent folder starts afresh") {
  const TemporaryDirectory directory;
  OneWeightRun run(numbered_batches(2), ledger);
  const auto state =
      run.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path() / "new", .resume_from = latest});
  CATCH_CHECK(state.step == 2);
}

CATCH_TEST_CASE("an explicit path, also by name, is the checkpoint that is taken") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(4), ledger,
                     {.evaluation_set = numbered_batches(1), .evaluation_step = script({2, 1, 3, 4})});
  (void)first.trainer.train({.epochs = 1,
                             .evaluate_every = every_step,
                             .checkpoint_every = every_step,
                             .monitor = Monitor("validation/score")},
                            {.checkpoint_dir = directory.path() / "first"});
  const auto resumed_tape = [&](const fs::path& checkpoint) {
    Tape tape;
    OneWeightRun second(numbered_batches(4), recorded(tape));
    (void)second.trainer.train({.epochs = 1}, {.resume_from = checkpoint});
    return tape;
  };
  CATCH_CHECK(resumed_tape(directory.path() / "first" / "step-00000003") == Tape{3});
  CATCH_CHECK(resumed_tape(directory.path() / "first" / "best") == Tape{2, 3});
  OneWeightRun absent(numbered_batches(4), ledger);
  CATCH_CHECK_THAT(
      train_error(absent, {.epochs = 1}, {.resume_from = directory.path() / "first" / "step-00000009"}),
      Contains("[checkpoint-not-found]"));
}

CATCH_TEST_CASE("a run is not mixed with another one's checkpoints, nor with its own later ones") {
  const TemporaryDirectory directory;
  const auto& root = directory.path();
  OneWeightRun first(numbered_batches(4), ledger);
  (void)first.trainer.train({.epochs = 1, .checkpoint_every = every_step},
                            {.checkpoint_dir = root / "first"});

  OneWeightRun fresh(numbered_batches(4), ledger);
  CATCH_CHECK_THAT(train_error(fresh, {.epochs = 1}, {.checkpoint_dir = root / "first"}),
                   Contains("[checkpoint-directory-not-empty]") && Contains("step-00000004"));
  OneWeightRun back(numbered_batches(4), ledger);
  const TrainOptions to_step_two{.checkpoint_dir = root / "first",
                                 .resume_from = root / "first" / "step-00000002"};
  CATCH_CHECK_THAT(train_error(back, {.epochs = 1}, to_step_two),
                   Contains("[newer-checkpoint-exists]") && Contains("step-00000004"));
  for (auto* run : {&fresh, &back}) {
    CATCH_CHECK(run->w() == 0.0);
    CATCH_CHECK(run->trainer.state() == TrainState{});
  }
  CATCH_CHECK(checkpoint_folders(root / "first").size() == 4);

  // Elsewhere the same checkpoint serves, and from then on that folder can be resumed.
  const auto state = back.trainer.train(
      {.epochs = 1, .max_steps = 3},
      {.checkpoint_dir = root / "second", .resume_from = root / "first" / "step-00000002"});
  CATCH_CHECK(state.step == 3);
  CATCH_CHECK(checkpoint_folders(root / "second") == Folders{"step-00000003"});
  OneWeightRun again(numbered_batches(4), ledger);
  CATCH_CHECK(
      again.trainer.train({.epochs = 1}, {.checkpoint_dir = root / "second", .resume_from = latest}).step ==
      4);
}

CATCH_TEST_CASE("best, patience and its start epoch go on where they were") {
  const TemporaryDirectory directory;
  const std::vector<double> scores{5, 6, 7, 8, 9, 10};
  const TrainConfig config{.epochs = 6,
                           .monitor = Monitor("validation/score", {.patience = 2, .start_epoch = 3})};
  std::vector<TrainState> ends;
  for (std::int64_t stop_after = 1; stop_after <= 3; ++stop_after) {
    const auto root = directory.path() / std::to_string(stop_after);
    TrainConfig first_part = config;
    first_part.max_steps = stop_after;
    OneWeightRun first(numbered_batches(1), ledger,
                       {.evaluation_set = numbered_batches(1), .evaluation_step = script(scores)});
    (void)first.trainer.train(first_part, {.checkpoint_dir = root});
    OneWeightRun second(numbered_batches(1), ledger,
                        {.evaluation_set = numbered_batches(1), .evaluation_step = script(scores)});
    const auto state = second.trainer.train(config, {.checkpoint_dir = root, .resume_from = latest});
    // Evaluations 3 and 4 are the first two that count.
    CATCH_CHECK(state.end == EndReason::early_stop);
    CATCH_CHECK(state.step == 4);
    CATCH_CHECK(state.best_step == 1);
    CATCH_CHECK(state.best_metric == 5.0);
  }
}

CATCH_TEST_CASE("averaged weights go on where they were") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(4), ledger, {.ema_decay = 0.5});
  (void)first.trainer.train({.epochs = 1, .max_steps = 2}, {.checkpoint_dir = directory.path()});
  CATCH_CHECK(saved_w(directory.path() / "last", "ema.safetensors") == -1.25);
  OneWeightRun second(numbered_batches(4), ledger, {.ema_decay = 0.5});
  (void)second.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest});
  // -0.5, -1.25, -2.125, -3.0625 after updates 1 to 4.
  CATCH_CHECK(second.trainer.weights(Weights::ema)[0].second.item<double>() == -3.0625);
  CATCH_CHECK(second.w() == -4.0);
}

CATCH_TEST_CASE("the unit that losses are weighted in stays that of the run's first microbatch") {
  const TemporaryDirectory directory;
  const auto unit = [&] {
    return read_checkpoint(directory.path() / "last").manifest.at("loss_unit").get<std::int64_t>();
  };
  OneWeightRun first(batches({{1, 1, 1}, {2}, {3}}), follow);
  (void)first.trainer.train({.epochs = 1, .max_steps = 1}, {.checkpoint_dir = directory.path()});
  CATCH_CHECK(unit() == 3);
  OneWeightRun second(batches({{1, 1, 1}, {2}, {3}}), follow);
  (void)second.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(unit() == 3);
  CATCH_CHECK(second.w() == 3.0);
}

CATCH_TEST_CASE("an evaluation that was due when a stop came is made by the run that resumes") {
  const TemporaryDirectory directory;
  const TrainConfig config{.epochs = 1,
                           .evaluate_every = Interval{2, Interval::Unit::step},
                           .monitor = Monitor("validation/loss")};
  StopRequest stop;
  OneWeightRun first(numbered_batches(4),
                     [&](OneWeight& model, const at::Tensor& batch) {
                       if (model.value() == -1) stop.request("test");
                       return ledger(model, batch);
                     },
                     {.evaluation_set = numbered_batches(1)});
  CATCH_CHECK_FALSE(
      first.trainer.train(config, {.checkpoint_dir = directory.path(), .stop = &stop}).best_step);

  RecordedLog log;
  OneWeightRun second(numbered_batches(4), ledger,
                      {.evaluation_set = numbered_batches(1), .logger = log.logger()});
  (void)second.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(log.series("validation/loss") ==
              std::vector<std::pair<std::int64_t, double>>{{2, -2}, {4, -4}});
  CATCH_CHECK(log.events().front().event == "resume");
}

CATCH_TEST_CASE(
    "a resumed run uses the checkpoint's schedule and base rates, unless told to keep the given one") {
  const TemporaryDirectory directory;
  const WarmupDecay original{.total_steps = 4, .decay = WarmupDecay::Decay::linear};
  const WarmupDecay given{.total_steps = 4, .decay = WarmupDecay::Decay::constant};
  OneWeightRun first(numbered_batches(4), ledger);
  first.trainer.set_scheduler(original);
  first.trainer.set_lr(2);
  (void)first.trainer.train({.epochs = 1, .max_steps = 2}, {.checkpoint_dir = directory.path() / "first"});
  CATCH_REQUIRE(first.w() == -2 * (1 + 0.75));

  const auto resumed = [&](bool keep_schedule) {
    OneWeightRun second(numbered_batches(4), ledger);
    second.trainer.set_scheduler(given);
    const auto warnings = captured_stderr([&] {
      (void)second.trainer.train({.epochs = 1}, {.resume_from = directory.path() / "first" / "last",
                                                 .keep_schedule = keep_schedule});
    });
    return std::pair(second.w(), warnings);
  };
  const auto [restored_w, restored_warnings] = resumed(false);
  CATCH_CHECK(restored_w == -2 * (1 + 0.75 + 0.5 + 0.25));
  CATCH_CHECK_THAT(restored_warnings,
                   Contains("the schedule of the checkpoint") && Contains("keep_schedule") &&
                       Contains("the options of parameter group group_0") && Contains("\"lr\":2.0") &&
                       Contains("\"lr\":1.0"));
  const auto [kept_w, kept_warnings] = resumed(true);
  CATCH_CHECK(kept_w == -2 * (1 + 0.75 + 1 + 1));
  CATCH_CHECK_THAT(kept_warnings, !Contains("the schedule of the checkpoint") && Contains("the options of"));
}

CATCH_TEST_CASE("nothing is said when a run is resumed as it was set up") {
  const TemporaryDirectory directory;
  const WarmupDecay schedule{.total_steps = 4, .decay = WarmupDecay::Decay::linear};
  const auto warnings = captured_stderr([&] {
    for (const std::int64_t max_steps : {2, 4}) {
      OneWeightRun run(numbered_batches(4), ledger);
      run.trainer.set_scheduler(schedule);
      (void)run.trainer.train({.epochs = 1, .max_steps = max_steps},
                              {.checkpoint_dir = directory.path(), .resume_from = latest});
    }
  });
  CATCH_CHECK(warnings.empty());
}

namespace {

/// A range that cannot seek and whose length nobody knows.
struct Stream {
  std::list<at::Tensor> batches;
  auto begin() { return batches.begin(); }
  auto end() { return batches.end(); }
};

Stream stream(std::int64_t count) {
  const auto all = numbered_batches(count);
  return {{all.begin(), all.end()}};
}

}  // namespace

CATCH_TEST_CASE("a source that cannot seek is read up to the position, which is said") {
  const TemporaryDirectory directory;
  OneWeightRun first(stream(4), ledger);
  (void)first.trainer.train({.epochs = 1, .max_steps = 3}, {.checkpoint_dir = directory.path()});

  Tape tape;
  OneWeightRun second(stream(4), recorded(tape));
  const auto warnings = captured_stderr(
      [&] { (void)second.trainer.train({.epochs = 1}, {.resume_from = directory.path() / "last"}); });
  CATCH_CHECK(tape == Tape{3});
  CATCH_CHECK_THAT(warnings, Contains("cannot seek"));

  OneWeightRun exhausted(stream(3), ledger);
  CATCH_CHECK_THAT(train_error(exhausted, {.epochs = 1}, {.resume_from = directory.path() / "last"}),
                   Contains("[empty-source]") && Contains("before batch 3 of epoch 0"));
}

CATCH_TEST_CASE("a damaged newest checkpoint is passed over with a warning, and named when it is asked for") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(3), ledger);
  (void)first.trainer.train({.epochs = 1, .max_steps = 2, .checkpoint_every = every_step},
                            {.checkpoint_dir = directory.path()});
  fs::remove(directory.path() / "step-00000002" / "rank-00000.safetensors");
  OneWeightRun second(numbered_batches(3), ledger);
  CATCH_CHECK_THAT(train_error(second, {.epochs = 1}, {.resume_from = directory.path() / "step-00000002"}),
                   Contains("[damaged-checkpoint]") && Contains("rank-00000.safetensors"));
  const auto warnings = captured_stderr([&] {
    const auto state =
        second.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest});
    CATCH_CHECK(state.step == 3);
  });
  CATCH_CHECK_THAT(warnings, Contains("step-00000002") && Contains("passed over"));
}

// ---- checkpoints that do not fit ----

namespace {

/// Everything in which a run can differ from the one that wrote its checkpoint.
struct Setup {
  Precision precision = Precision::fp32;
  std::int64_t accumulation = 1;
  std::uint64_t seed = 1;
  std::int64_t features = 2;
  bool second_layer = false;
  std::string optimizer = "SGD";
  bool decay_groups = false;
  std::int64_t samples = 8;
  DataLoaderOptions data = {.batch_size = 2, .shuffle = true, .seed = 5};
  std::optional<double> ema_decay = {};
};

struct Layers : torch::nn::Module {
  explicit Layers(const Setup& setup)
      : first(register_module("first", torch::nn::Linear(1, setup.features))) {
    if (setup.second_layer) second = register_module("second", torch::nn::Linear(1, 1));
  }
  torch::nn::Linear first;
  torch::nn::Linear second = nullptr;
};

/// Trains a run of this setup, or returns the text of the Error that came.
std::string train_setup(const Setup& setup, const TrainOptions& options) {
  Accelerator accelerator({.precision = setup.precision,
                           .gradient_accumulation_steps = setup.accumulation,
                           .seed = setup.seed,
                           .device = at::kCPU});
  Layers model(setup);
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  const auto parameters = model.parameters();
  if (setup.decay_groups) {
    optimizer = std::make_unique<GroupedOptimizer<torch::optim::SGD>>(weight_decay_groups(model, 0.1),
                                                                      torch::optim::SGDOptions(0.1));
  } else if (setup.optimizer == "SGD") {
    optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1));
  } else {
    optimizer = std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(0.1));
  }
  DataLoader loader(TensorDataset(torch::ones({setup.samples, 1})), setup.data);
  const auto step = [](Layers& net, const Example& batch) -> StepOutput {
    return {.loss = net.first(batch.data).square().mean(), .num_samples = batch.data.size(0)};
  };
  Trainer trainer(accelerator, model, *optimizer, loader, step, {.ema_decay = setup.ema_decay});
  const auto before = sha256(trainer.weights());
  try {
    (void)trainer.train({.epochs = 10, .max_steps = 1}, options);
    return "";
  } catch (const CheckpointError& error) {
    CATCH_CHECK(sha256(trainer.weights()) == before);
    CATCH_CHECK(trainer.state() == TrainState{});
    CATCH_CHECK(optimizer->state().empty());
    return error.what();
  }
}

}  // namespace

CATCH_TEST_CASE("a checkpoint of another run is refused before anything is changed, with every difference") {
  const TemporaryDirectory directory;
  const Setup original;
  CATCH_REQUIRE(train_setup(original, {.checkpoint_dir = directory.path() / "plain"}).empty());
  auto averaged = original;
  averaged.ema_decay = 0.5;
  averaged.second_layer = true;
  CATCH_REQUIRE(train_setup(averaged, {.checkpoint_dir = directory.path() / "averaged"}).empty());

  const auto refusal = [&](const char* from, auto&& change) {
    auto setup = std::string(from) == "plain" ? original : averaged;
    change(setup);
    return train_setup(setup, {.resume_from = directory.path() / from / "last"});
  };
  const auto expect = [&](const std::string& difference, auto&& change) {
    CATCH_CHECK_THAT(refusal("plain", change), Contains("[checkpoint-does-not-fit]") && Contains(difference));
  };
  CATCH_CHECK(refusal("plain", [](Setup&) {}).empty());
  CATCH_CHECK(refusal("averaged", [](Setup&) {}).empty());

  expect("precision was \"fp32\" and is \"fp64\" now", [](Setup& s) { s.precision = Precision::fp64; });
  expect("model first.weight was Float and is Double now", [](Setup& s) { s.precision = Precision::fp64; });
  expect("gradient_accumulation_steps was 1 and is 3 now", [](Setup& s) { s.accumulation = 3; });
  expect("seed was 1 and is 2 now", [](Setup& s) { s.seed = 2; });
  expect("data batches was 4 and is 5 now", [](Setup& s) { s.samples = 9; });
  expect("data samples was 8 and is 9 now", [](Setup& s) { s.samples = 9; });
  expect("data batch_size was 2 and is 4 now", [](Setup& s) { s.data.batch_size = 4; });
  expect("data seed was 5 and is 6 now", [](Setup& s) { s.data.seed = 6; });
  expect("data shuffle was true and is false now", [](Setup& s) { s.data.shuffle = false; });
  expect("data drop_last was false and is true now", [](Setup& s) { s.data.drop_last = true; });
  expect("data even_batches was false and is true now", [](Setup& s) { s.data.even_batches = true; });
  expect("data split_batches was false and is true now", [](Setup& s) { s.data.split_batches = true; });
  expect("model first.weight had shape [2, 1] and has [3, 1] now", [](Setup& s) { s.features = 3; });
  expect("model has no tensor second.weight", [](Setup& s) { s.second_layer = true; });
  expect("the optimizer was SGD and is Adam now", [](Setup& s) { s.optimizer = "Adam"; });
  expect("the optimizer had 1 parameter groups and has 2 now", [](Setup& s) { s.decay_groups = true; });
  expect("group 0 (decay) held other parameters", [](Setup& s) { s.decay_groups = true; });
  expect("this Trainer keeps averaged weights and the checkpoint has none",
         [](Setup& s) { s.ema_decay = 0.5; });

  CATCH_CHECK_THAT(refusal("averaged", [](Setup& s) { s.ema_decay.reset(); }),
                   Contains("the checkpoint holds averaged weights and this Trainer keeps none"));
  CATCH_CHECK_THAT(refusal("averaged", [](Setup& s) { s.ema_decay = 0.75; }), Contains("ema_decay was 0.5"));
  CATCH_CHECK_THAT(refusal("averaged", [](Setup& s) { s.second_layer = false; }),
                   Contains("model has a tensor second.weight, which the model has not") &&
                       Contains("averaged weights has a tensor second.weight"));
}

CATCH_TEST_CASE("more worker threads, other intervals and other limits are no difference") {
  const TemporaryDirectory directory;
  CATCH_REQUIRE(train_setup({}, {.checkpoint_dir = directory.path()}).empty());
  Setup changed;
  changed.data.workers = 2;
  CATCH_CHECK(train_setup(changed, {.checkpoint_dir = directory.path(), .resume_from = latest}).empty());
}

CATCH_TEST_CASE("another number of threads only costs exact bits, which is said") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(2), ledger);
  (void)first.trainer.train({.epochs = 1, .max_steps = 1}, {.checkpoint_dir = directory.path()});
  at::set_num_threads(2);
  OneWeightRun second(numbered_batches(2), ledger);
  const auto warnings = captured_stderr([&] {
    (void)second.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest});
  });
  at::set_num_threads(1);
  CATCH_CHECK_THAT(warnings, Contains("threads was 1") && Contains("is 2 now"));
  CATCH_CHECK(second.w() == -2.0);
}

CATCH_TEST_CASE("another LibTorch, processor or device only costs exact bits, which is said by name") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_batches(2), ledger);
  (void)first.trainer.train({.epochs = 1, .max_steps = 1}, {.checkpoint_dir = directory.path() / "own"});
  const auto warnings_with = [&](const std::string& folder, const std::function<void(nlohmann::json&)>& change) {
    auto checkpoint = read_checkpoint(directory.path() / "own" / "last");
    change(checkpoint.manifest.at("fingerprint"));
    const auto changed = CheckpointWriter(directory.path() / folder).save(checkpoint);
    OneWeightRun second(numbered_batches(2), ledger);
    auto warnings = captured_stderr([&] {
      (void)second.trainer.train({.epochs = 1, .checkpoint_every = {}}, {.resume_from = changed});
    });
    CATCH_CHECK(second.w() == -2.0);
    return warnings;
  };
  for (const std::string name : {"torch", "cpu_capability", "device"}) {
    CATCH_CHECK_THAT(warnings_with(name, [&](nlohmann::json& fingerprint) { fingerprint.at(name) = "abacus"; }),
                     Contains(name + " was \"abacus\""));
  }
  CATCH_CHECK_THAT(warnings_with("build", [](nlohmann::json& fingerprint) { fingerprint.at("build")[0] = "Abacus 1.0"; }),
                   Contains("build was [\"Abacus 1.0\"]") && Contains(" and is [\"" + torch_build().front() + "\"] now"));
  // As earlier versions wrote it.
  CATCH_CHECK(warnings_with("no build", [](nlohmann::json& fingerprint) { fingerprint.erase("build"); }).empty());
}

CATCH_TEST_CASE("the program's own settings stand beside the Trainer's in the log and in every checkpoint") {
  const TemporaryDirectory directory;
  RunLogger logger(directory.path() / "run", {.quiet = true, .tensorboard = false, .record_git = false});
  OneWeightRun run(numbered_batches(1), ledger, {.logger = &logger});
  (void)run.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .settings = R"({"model": {"width": 8}})"});
  const auto expected = nlohmann::json::parse(R"({"model": {"width": 8}})");
  CATCH_CHECK(read_checkpoint(directory.path() / "last").manifest.at("config").at("settings") == expected);
  CATCH_CHECK(nlohmann::json::parse(read_text(directory.path() / "run" / "config.json")).at("settings") == expected);
  CATCH_CHECK_THAT(train_error(run, {.epochs = 2}, {.settings = "{"}), Contains("settings is no JSON"));
}

CATCH_TEST_CASE("what stood before a window that failed is saved, and goes on from there to the same bits") {
  const TemporaryDirectory directory;
  const auto noisy = [](OneWeight& model, const at::Tensor& batch) -> StepOutput {
    return {.loss = (model.w - batch + torch::rand({}, torch::kDouble)).square().mean(), .num_samples = 1};
  };
  const TrainConfig config{.epochs = 1, .evaluate_every = {}, .checkpoint_every = {}};
  OneWeightRun whole(numbered_batches(6), noisy, {.accumulation = 2, .lr = 0.1});
  (void)whole.trainer.train(config);

  std::int64_t microbatch = 0;
  OneWeightRun failing(numbered_batches(6),
                       [&](OneWeight& model, const at::Tensor& batch) {
                         auto output = noisy(model, batch);
                         if (++microbatch == 4) throw std::runtime_error("the user's own");
                         return output;
                       },
                       {.accumulation = 2, .lr = 0.1});
  CATCH_CHECK_THROWS_WITH(failing.trainer.train(config, {.checkpoint_dir = directory.path()}), "the user's own");
  CATCH_CHECK(target(directory.path(), "last") == "step-00000001");
  CATCH_CHECK(target(directory.path(), "final").empty());

  OneWeightRun resumed(numbered_batches(6), noisy, {.accumulation = 2, .lr = 0.1, .seed = 99});
  CATCH_CHECK_THAT(train_error(resumed, config, {.checkpoint_dir = directory.path(), .resume_from = latest}),
                   Contains("seed"));
  OneWeightRun again(numbered_batches(6), noisy, {.accumulation = 2, .lr = 0.1});
  (void)again.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(again.w() == whole.w());
}
