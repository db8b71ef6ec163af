// What a run does about saves that go on in the background, that fail, or that somebody asks for.
#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "files/checkpoint.hpp"
#include "support/captured_stderr.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/fixtures.hpp"
#include "support/hand_clock.hpp"
#include "support/held_tensor.hpp"
#include "support/throws.hpp"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using Folders = std::vector<std::string>;

constexpr Interval every_step{1, Interval::Unit::step};
constexpr Interval every_other_step{2, Interval::Unit::step};

std::map<std::string, std::string> tensor_files(const fs::path& checkpoint) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    if (entry.path().extension() == ".safetensors") files[entry.path().filename()] = read_text(entry.path());
  }
  return files;
}

/// Calls `before_update(n)` in the Step of update n, counted from 1.
OneWeightStep<at::Tensor> ledger_with(std::function<void(int)> before_update) {
  return [before_update = std::move(before_update)](OneWeight& model, const at::Tensor& batch) {
    before_update(1 - static_cast<int>(model.value()));
    return ledger(model, batch);
  };
}

struct Events : Sink {
  void write(const LogEvent& event) override { all.push_back(event); }
  [[nodiscard]] std::vector<LogEvent> of(const std::string& kind) const {
    std::vector<LogEvent> found;
    for (const auto& event : all) {
      if (event.event == kind) found.push_back(event);
    }
    return found;
  }
  std::vector<LogEvent> all;
};

/// A run of eight batches whose saves a gate can hold up.
struct GatedRun {
  explicit GatedRun(std::function<void(int)> before_update, RunLogger* logger = nullptr)
      : run(numbered_batches(8), ledger_with(std::move(before_update)), {.logger = logger}) {
    run.trainer.register_state("gate", state);
  }

  Gate gate;
  GatedState state{gate};
  OneWeightRun<Batches> run;
};

/// A disk that is full while a save of update `failing` is written, and no other. Saves happen every other update.
struct FullDisk {
  FullDisk(Gate& gate, int failing) : gate(gate), failing(failing) {}
  void operator()(int update) {
    if (update == failing) {
      gate.wait_for(failing / 2 - 1);
      limit.emplace(4000);  // a rank's file is longer, what it says of that is shorter
    }
    if (update == failing + 1) {
      gate.wait_for(failing / 2);
      limit.reset();
    }
  }
  Gate& gate;
  int failing;
  std::optional<FileSizeLimit> limit;
};

}  // namespace

// ---- the same files ----

CATCH_TEST_CASE("a run makes the same checkpoints in the background as at once") {
  const TemporaryDirectory directory;
  const auto train = [&](bool background) {
    OneWeightRun run(numbered_batches(5), follow, {.lr = 0.3, .ema_decay = 0.5});
    const auto root = directory.path() / (background ? "background" : "at-once");
    (void)run.trainer.train({.epochs = 2, .checkpoint_every = every_step, .keep_checkpoints = 7, .background_saves = background},
                            {.checkpoint_dir = root});
    return root;
  };
  const auto background = train(true);
  const auto at_once = train(false);
  CATCH_CHECK(checkpoint_folders(background).size() == 7);
  CATCH_REQUIRE(checkpoint_folders(background) == checkpoint_folders(at_once));
  for (const auto& folder : checkpoint_folders(background)) {
    CATCH_CHECK(tensor_files(background / folder) == tensor_files(at_once / folder));
    CATCH_CHECK(read_checkpoint(background / folder).manifest.at("state") ==
                read_checkpoint(at_once / folder).manifest.at("state"));
  }
  for (const auto* name : {"last", "final"}) CATCH_CHECK(fs::read_symlink(background / name) == "step-00000010");
}

CATCH_TEST_CASE("a checkpoint is logged when it is handed over, with the folder that it gets") {
  const TemporaryDirectory directory;
  RunLogger logger(directory.path() / "run", {.quiet = true});
  const auto events = std::make_shared<Events>();
  logger.add_sink(events);
  OneWeightRun run(numbered_batches(3), ledger, {.logger = &logger});
  (void)run.trainer.train({.epochs = 1, .checkpoint_every = every_step}, {.checkpoint_dir = directory.path() / "c"});
  const auto saves = events->of("checkpoint");
  CATCH_REQUIRE(saves.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) {
    CATCH_CHECK(saves[i].step == static_cast<std::int64_t>(i) + 1);
    CATCH_CHECK(read_checkpoint(saves[i].text).manifest.at("state").at("step") == saves[i].step);
  }
}

// ---- saves that are due while one is under way ----

CATCH_TEST_CASE("a save that is due while another one is written is left out where that is asked for, and counted") {
  const TemporaryDirectory directory;
  RunLogger logger(directory.path() / "run", {.quiet = true});
  const auto events = std::make_shared<Events>();
  logger.add_sink(events);
  GatedRun gated(
      [&gated](int update) {
        // The first save is held up over the second and the third update.
        if (update == 2) gated.gate.wait_for(1);
        if (update == 4) gated.gate.open();
      },
      &logger);
  gated.gate.shut();
  const auto root = directory.path() / "checkpoints";
  (void)gated.run.trainer.train({.max_steps = 4, .checkpoint_every = every_step, .skip_busy_saves = true},
                                {.checkpoint_dir = root});
  CATCH_CHECK(checkpoint_folders(root) == Folders{"step-00000001", "step-00000004"});
  const auto skips = events->of("skip_save");
  CATCH_REQUIRE(skips.size() == 2);
  CATCH_CHECK(skips[0].step == 2);
  CATCH_CHECK(skips[1].step == 3);
  CATCH_CHECK(skips[1].values == std::vector<std::pair<std::string, double>>{{"skipped_saves", 2.0}});
}

CATCH_TEST_CASE("a new best, a request and the end are saved however busy the writer is") {
  const TemporaryDirectory directory;
  SaveRequest save;
  Gate gate;
  GatedState state{gate};
  gate.shut();
  OneWeightRun run(numbered_batches(4), ledger_with([&](int update) {
                     if (update == 2) std::thread([&gate] { gate.wait_for(1), gate.open(); }).detach();
                     if (update == 3) save.request();
                   }),
                   {.evaluation_set = numbered_batches(1), .evaluation_step = script({3, 2, 4, 5})});
  run.trainer.register_state("gate", state);
  (void)run.trainer.train({.epochs = 1,
                           .evaluate_every = every_step,
                           .checkpoint_every = Interval{100, Interval::Unit::step},
                           .skip_busy_saves = true,
                           .monitor = Monitor("validation/score")},
                          {.checkpoint_dir = directory.path(), .save_now = &save});
  CATCH_CHECK(checkpoint_folders(directory.path()) ==
              Folders{"step-00000001", "step-00000002", "step-00000003", "step-00000004"});
  CATCH_CHECK(saved_w(directory.path() / "best") == -2.0);
}

// ---- saves that fail ----

CATCH_TEST_CASE("a save that fails in the background is a warning, and training and later saves go on") {
  const TemporaryDirectory directory;
  FullDisk* disk = nullptr;
  GatedRun gated([&disk](int update) { (*disk)(update); });
  FullDisk full(gated.gate, 4);
  disk = &full;
  const auto warnings = captured_stderr([&] {
    (void)gated.run.trainer.train({.epochs = 1, .checkpoint_every = every_other_step}, {.checkpoint_dir = directory.path()});
  });
  CATCH_CHECK(gated.run.w() == -8.0);
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000002", "step-00000006", "step-00000008"});
  CATCH_CHECK(saved_w(directory.path() / "last") == -8.0);
  CATCH_CHECK_THAT(warnings, Contains("a checkpoint could not be saved: [cannot-write-file]") &&
                                 Contains("File too large") && Contains("tries again"));
  CATCH_CHECK(warnings.find("could not be saved") == warnings.rfind("could not be saved"));
}

CATCH_TEST_CASE("a save that fails in the background ends the run at the next update where that is asked for") {
  const TemporaryDirectory directory;
  FullDisk* disk = nullptr;
  GatedRun gated([&disk](int update) { (*disk)(update); });
  FullDisk full(gated.gate, 4);
  disk = &full;
  const auto id = thrown_id<FileError>([&] {
    (void)gated.run.trainer.train({.epochs = 1, .checkpoint_every = every_other_step, .fail_on_save_error = true},
                                  {.checkpoint_dir = directory.path()});
  });
  CATCH_CHECK(id == "cannot-write-file");
  CATCH_CHECK(gated.run.w() == -5.0);
  // The disk has room again: the state that the run ends with is saved after all.
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000002", "step-00000005"});
  CATCH_CHECK(saved_w(directory.path() / "last") == -5.0);
}

CATCH_TEST_CASE("a save at once that fails is the same warning or error") {
  const bool fails = GENERATE(false, true);
  const TemporaryDirectory directory;
  std::optional<FileSizeLimit> limit;
  OneWeightRun run(numbered_batches(4), ledger_with([&](int update) {
                     limit.reset();
                     if (update == 2) limit.emplace(100);
                   }));
  std::string error;
  const auto warnings = captured_stderr([&] {
    error = train_error(run,
                        {.epochs = 1, .checkpoint_every = every_step, .background_saves = false, .fail_on_save_error = fails},
                        {.checkpoint_dir = directory.path()});
  });
  limit.reset();
  CATCH_CHECK_THAT(fails ? error : warnings, Contains("[cannot-write-file]"));
  CATCH_CHECK(run.w() == (fails ? -2.0 : -4.0));
  CATCH_CHECK(checkpoint_folders(directory.path()) ==
              (fails ? Folders{"step-00000001"} : Folders{"step-00000001", "step-00000003", "step-00000004"}));
}

CATCH_TEST_CASE("a last state that cannot be saved is an error after everything else, stopped or ended, always") {
  const bool background = GENERATE(false, true);
  const bool stopped = GENERATE(false, true);
  const TemporaryDirectory directory;
  RunLogger logger(directory.path() / "run", {.quiet = true});
  const auto events = std::make_shared<Events>();
  logger.add_sink(events);
  StopRequest stop;
  Gate gate;
  GatedState state{gate};
  std::optional<FileSizeLimit> limit;
  // The log, too, is a file: nothing of it is as long as this.
  const auto step = ledger_with([&](int update) {
    if (update == 3) {
      gate.wait_for(1);
      limit.emplace(100'000);
      if (stopped) stop.request("a test");
    }
  });
  OneWeightRun run(numbered_batches(3), step, {.logger = &logger, .test_set = numbered_batches(2)});
  run.trainer.register_state("gate", state);
  struct Large {
    NamedTensors state() const { return {{"large", torch::zeros({100'000})}}; }
    void load_state(const NamedTensors&) {}
  } large;
  // Only the last state is too large for the disk.
  run.trainer.register_state("large", large);
  const auto root = directory.path() / "checkpoints";
  const auto id = thrown_id<FileError>([&] {
    (void)run.trainer.train({.epochs = 1, .checkpoint_every = every_other_step, .background_saves = background},
                            {.checkpoint_dir = root, .stop = &stop});
  });
  limit.reset();
  CATCH_CHECK(id == "cannot-write-file");
  CATCH_CHECK(saved_w(root / "last") == -2.0);
  CATCH_CHECK(checkpoint_folders(root) == Folders{"step-00000002"});
  CATCH_CHECK(events->of(stopped ? "stop" : "end").size() == 1);
  CATCH_CHECK(events->of("test").size() == (stopped ? 0 : 1));
  CATCH_REQUIRE(events->of("error").size() == 1);
  CATCH_CHECK_THAT(events->of("error").front().text, Contains("[cannot-write-file]"));

  // Nothing was lost: the same Trainer goes on, and saves.
  stop.clear();
  (void)run.trainer.train({.epochs = 2, .max_steps = 4}, {.checkpoint_dir = root, .resume_from = {}});
  CATCH_CHECK(saved_w(root / "last") == -4.0);
}

CATCH_TEST_CASE("what fails for another reason than the disk is an error, whatever is said of the disk") {
  const TemporaryDirectory directory;
  struct Sparse {
    NamedTensors state() const { return {{"sparse", torch::eye(2).to_sparse()}}; }
    void load_state(const NamedTensors&) {}
  } sparse;
  OneWeightRun run(numbered_batches(4), ledger);
  run.trainer.register_state("sparse", sparse);
  CATCH_CHECK_THAT(train_error(run, {.epochs = 1, .checkpoint_every = every_step}, {.checkpoint_dir = directory.path()}),
                   Contains("[cannot-store-tensor]"));
}

// ---- an exception, a stop ----

CATCH_TEST_CASE("a run that fails while a save is under way waits for it, and saves what it has") {
  const TemporaryDirectory directory;
  GatedRun gated([&gated](int update) {
    if (update != 2) return;
    gated.gate.wait_for(1);
    std::thread([&gated] { gated.gate.open(); }).detach();
    throw std::runtime_error("a leaf fell");
  });
  gated.gate.shut();
  CATCH_CHECK_THROWS_WITH(
      gated.run.trainer.train({.epochs = 1, .checkpoint_every = every_step}, {.checkpoint_dir = directory.path()}),
      "a leaf fell");
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000001"});
  CATCH_CHECK(saved_w(directory.path() / "last") == -1.0);
}

CATCH_TEST_CASE("a run that fails tells of the save that failed before") {
  const TemporaryDirectory directory;
  std::optional<FileSizeLimit> limit;
  GatedRun gated([&](int update) {
    if (update == 2) gated.gate.wait_for(1), limit.emplace(1000);
    if (update == 3) throw std::runtime_error("a leaf fell");
  });
  const auto warnings = captured_stderr([&] {
    CATCH_CHECK_THROWS_WITH(
        gated.run.trainer.train({.epochs = 1, .checkpoint_every = every_step}, {.checkpoint_dir = directory.path()}),
        "a leaf fell");
  });
  limit.reset();
  CATCH_CHECK_THAT(warnings, Contains("could not be saved: [cannot-write-file]"));
  CATCH_CHECK(saved_w(directory.path() / "last") == -1.0);
}

CATCH_TEST_CASE("a stop that comes while a save is under way ends the run at that update, with its state saved") {
  const int number = GENERATE(SIGTERM, SIGUSR1);
  const TemporaryDirectory directory;
  StopRequest stop;
  const auto signals = stop.catch_signals();
  GatedRun gated([&](int update) {
    if (update != 2) return;
    gated.gate.wait_for(1);
    std::thread([&gated] { gated.gate.open(); }).detach();
    ::kill(::getpid(), number);
  });
  gated.gate.shut();
  const auto state = gated.run.trainer.train({.epochs = 1, .checkpoint_every = every_step},
                                             {.checkpoint_dir = directory.path(), .stop = &stop});
  CATCH_CHECK(state.step == 2);
  CATCH_CHECK(state.end == EndReason::stop_request);
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000001", "step-00000002"});
  CATCH_CHECK(saved_w(directory.path() / "last") == -2.0);
}

// ---- by the clock, and on request ----

CATCH_TEST_CASE("checkpoints are due by the clock") {
  const TemporaryDirectory directory;
  HandClock clock;
  OneWeightRun run(numbered_batches(8), ledger_with([&](int) { clock.pass(10); }));
  (void)run.trainer.train({.epochs = 1, .checkpoint_every = Interval{30, Interval::Unit::second}},
                          {.checkpoint_dir = directory.path()});
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000003", "step-00000006", "step-00000008"});
}

CATCH_TEST_CASE("checkpoints by the time between failures begin at the first update, to measure") {
  const TemporaryDirectory directory;
  HandClock clock;
  // The clock stands still in a save: it costs nothing, and is made after every update.
  OneWeightRun run(numbered_batches(3), ledger_with([&](int) { clock.pass(1); }));
  (void)run.trainer.train({.epochs = 1, .checkpoint_every = Interval::young_daly(std::chrono::hours(8))},
                          {.checkpoint_dir = directory.path()});
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000001", "step-00000002", "step-00000003"});
}

CATCH_TEST_CASE("a request saves at the next update, and the run goes on") {
  const bool by_signal = GENERATE(false, true);
  const TemporaryDirectory directory;
  SaveRequest save;
  const auto scope = save.catch_signal();
  OneWeightRun run(numbered_batches(8), ledger_with([&](int update) {
                     if (update != 3) return;
                     by_signal ? static_cast<void>(::kill(::getpid(), SIGUSR2)) : save.request();
                   }));
  const auto state = run.trainer.train({.epochs = 1, .checkpoint_every = {}},
                                       {.checkpoint_dir = directory.path(), .save_now = &save});
  CATCH_CHECK(state.end == EndReason::epochs);
  CATCH_CHECK(checkpoint_folders(directory.path()) == Folders{"step-00000003", "step-00000008"});
}

CATCH_TEST_CASE("what happens in a run does not depend on a clock, but for saving") {
  const Interval timed{30, Interval::Unit::second};
  OneWeightRun run(numbered_batches(1), ledger);
  const auto id = [](auto&& call) { return thrown_id<ConfigError>(call); };
  CATCH_CHECK(id([&] { run.trainer.set_scheduler(LambdaSchedule{"one", [](std::int64_t) { return 1.0; }}, timed); }) ==
              "invalid-settings");
  torch::optim::StepLR torch_schedule(run.optimizer, 1);
  CATCH_CHECK(id([&] { run.trainer.set_scheduler(torch_schedule, timed); }) == "invalid-settings");
  const auto set = numbered_batches(1);
  CATCH_CHECK(id([&] {
                Evaluator evaluator(run.accelerator, {{"validation", set}}, OneWeightStep<at::Tensor>(ledger),
                                    {.every = {{"validation", timed}}});
              }) == "invalid-settings");
}

}  // namespace lockstep::test
