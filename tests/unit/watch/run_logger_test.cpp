#include "lockstep/watch/run_logger.hpp"

#include <errno.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/posix_file.hpp"
#include "lockstep/base/error.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/base/version.hpp"
#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/git_repository.hpp"
#include "support/temporary_directory.hpp"
#include "support/terminal.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

/// A run folder, and a console whose lines can be read: "info: text".
struct Fixture {
  TemporaryDirectory directory;
  std::filesystem::path run_dir = directory.path() / "runs" / "first";
  std::ostringstream lines;
  std::shared_ptr<spdlog::logger> console =
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_st>(lines));

  Fixture() { console->set_pattern("%l: %v"); }

  RunLogger open(RunLoggerOptions options = {}) {
    options.console = console;
    return RunLogger(run_dir, options);
  }

  nlohmann::json starts() const {
    return nlohmann::json::parse(read_text(run_dir / "run.json")).at("starts");
  }
};

/// Notes what it is told; throws at the events that are named so.
struct RecordingSink final : Sink {
  std::vector<std::string> events;

  void write(const LogEvent& event) override {
    if (event.event == "throw") throw std::runtime_error("out of ink");
    if (event.event == "throw int") throw 1;
    events.push_back(event.event);
  }
  void finish() override { events.emplace_back("finished"); }
};

struct CountingSink final : Sink {
  RunStart last_start;
  double last_time = 0;
  int written = 0;

  void begin(const RunStart& start) override { last_start = start; }
  void write(const LogEvent& event) override {
    last_time = event.time;
    ++written;
  }
};

}  // namespace

CATCH_TEST_CASE("a run leaves its events, its configuration and where it ran in its folder") {
  Fixture fixture;
  const std::time_t before = std::time(nullptr);
  {
    auto logger = fixture.open();
    CATCH_REQUIRE(logger.run_dir() == fixture.run_dir);
    logger.begin({.plan = {.first_step = 3},
                  .run_id = "abc",
                  .config = R"({"epochs": 3})",
                  .versions = {{"torch", "2.13.0"}},
                  .seed = 7});
    logger.log({.event = "start"});
    logger.end();
  }
  CATCH_REQUIRE(nlohmann::json::parse(read_text(fixture.run_dir / "metrics.jsonl"))["event"] == "start");
  CATCH_REQUIRE(read_text(fixture.run_dir / "config.json") == "{\"epochs\": 3}\n");

  const auto starts = fixture.starts();
  CATCH_REQUIRE(starts.size() == 1);
  const auto& run = starts[0];
  CATCH_CHECK(run["run_id"] == "abc");
  CATCH_CHECK(run["first_step"] == 3);
  CATCH_CHECK(run["seed"] == 7);
  CATCH_CHECK(run["versions"]["lockstep"] == LOCKSTEP_VERSION);
  CATCH_CHECK(run["versions"]["torch"] == "2.13.0");
  CATCH_CHECK_FALSE(run["versions"]["compiler"].get<std::string>().empty());
  utsname system = {};
  CATCH_REQUIRE(uname(&system) == 0);
  CATCH_CHECK(run["host"] == system.nodename);
  CATCH_CHECK(run["process"] == getpid());
  CATCH_CHECK(run["directory"] == std::filesystem::current_path().string());
  CATCH_CHECK(run["command"][0] == program_invocation_name);
  std::tm started = {};
  CATCH_REQUIRE(strptime(run["started"].get<std::string>().c_str(), "%Y-%m-%dT%H:%M:%SZ", &started) !=
                nullptr);
  CATCH_CHECK(timegm(&started) >= before);
  CATCH_CHECK(timegm(&started) <= before + 60);
}

CATCH_TEST_CASE("each process that works on a run adds itself to what was recorded") {
  Fixture fixture;
  for (const std::int64_t first_step : {0, 40}) {
    auto logger = fixture.open();
    logger.begin({.plan = {.first_step = first_step}, .run_id = "abc"});
    logger.begin({.plan = {.first_step = first_step + 10}, .run_id = "abc"});
  }
  const auto starts = fixture.starts();
  CATCH_REQUIRE(starts.size() == 2);
  CATCH_CHECK(starts[0]["first_step"] == 0);
  CATCH_CHECK(starts[1]["first_step"] == 40);
}

CATCH_TEST_CASE("a run.json of another kind does not keep a run from starting") {
  Fixture fixture;
  auto logger = fixture.open();
  write_text(fixture.run_dir / "run.json", GENERATE("{", "[]", R"({"starts": 1})"));
  logger.begin({});
  CATCH_CHECK(fixture.starts().size() == 1);
}

CATCH_TEST_CASE("the commit and the changes of the working directory are recorded, unless turned off") {
  Fixture fixture;
  const auto repository = fixture.directory.path() / "repository";
  std::filesystem::create_directory(repository);
  make_git_repository(repository);
  const auto before = std::filesystem::current_path();
  const auto record = [&](const RunLoggerOptions& options) {
    std::filesystem::current_path(repository);
    fixture.open(options).begin({});
    std::filesystem::current_path(before);
    return fixture.starts().back();
  };

  CATCH_CHECK_FALSE(record({.record_git = false}).contains("git"));
  const auto clean = record({});
  CATCH_CHECK(clean["git"]["commit"].get<std::string>().size() == 40);
  CATCH_CHECK(clean["git"]["changes"].is_null());
  CATCH_CHECK_FALSE(std::filesystem::exists(fixture.run_dir / "diff.patch"));

  for (const char* text : {"two", "two", "three", "two"}) {
    write_text(repository / "file", std::string(text) + "\n");
    const std::string name = record({})["git"]["changes"];
    CATCH_CHECK(name == (text == std::string("two") ? "diff.patch" : "diff-2.patch"));
    CATCH_CHECK(read_text(fixture.run_dir / name).find(std::string("\n-one\n+") + text) != std::string::npos);
  }
}

CATCH_TEST_CASE("event files for TensorBoard are written, unless turned off") {
  const bool on = GENERATE(true, false);
  Fixture fixture;
  fixture.open({.tensorboard = on}).begin({});
  bool found = false;
  for (const auto& entry : std::filesystem::directory_iterator(fixture.run_dir))
    found |= entry.path().filename().string().find("tfevents") != std::string::npos;
  CATCH_CHECK(found == on);
}

CATCH_TEST_CASE("the configuration is replaced as a whole, whatever a crash left behind") {
  Fixture fixture;
  auto logger = fixture.open();
  write_text(fixture.run_dir / "config.json", "old");
  write_text(fixture.run_dir / ".new", "half of a");
  struct stat old = {};
  struct stat now = {};
  CATCH_REQUIRE(stat((fixture.run_dir / "config.json").c_str(), &old) == 0);
  logger.begin({});
  CATCH_REQUIRE(stat((fixture.run_dir / "config.json").c_str(), &now) == 0);
  CATCH_REQUIRE(now.st_ino != old.st_ino);
  CATCH_REQUIRE(read_text(fixture.run_dir / "config.json") == "{}\n");
  CATCH_REQUIRE_FALSE(std::filesystem::exists(fixture.run_dir / ".new"));
}

CATCH_TEST_CASE("a run folder belongs to one logger at a time") {
  Fixture fixture;
  {
    auto logger = fixture.open();
    CATCH_REQUIRE(thrown_id<FileError>([&] { fixture.open(); }) == "run-directory-in-use");
  }
  auto logger = fixture.open();
}

CATCH_TEST_CASE("a run folder may be the folder of its checkpoints too") {
  Fixture fixture;
  auto logger = fixture.open();
  CATCH_REQUIRE_NOTHROW(DirectoryLock(fixture.run_dir, ".lock", message::checkpoint_directory_in_use));
}

CATCH_TEST_CASE("a folder that cannot be created is an error") {
  const TemporaryDirectory directory;
  write_text(directory.path() / "file", "");
  CATCH_REQUIRE(thrown_id<FileError>([&] { RunLogger(directory.path() / "file" / "run"); }) ==
                "cannot-create-directory");
}

CATCH_TEST_CASE("a process that is not the main one leaves no trace") {
  Fixture fixture;
  auto sink = std::make_shared<RecordingSink>();
  {
    auto logger = fixture.open({.is_main_process = false});
    logger.add_sink(sink);
    logger.begin({});
    logger.log({.event = "start"});
    logger.progress(1);
    logger.info("text");
    logger.warn("text");
    logger.end();
  }
  CATCH_REQUIRE_FALSE(std::filesystem::exists(fixture.run_dir));
  CATCH_REQUIRE(fixture.lines.str().empty());
  CATCH_REQUIRE(sink->events.empty());
}

CATCH_TEST_CASE("events are shown as lines") {
  Fixture fixture;
  auto logger = fixture.open();
  logger.begin({.plan = {.first_step = 120, .planned_steps = 860}});
  logger.log({.event = "start"});
  logger.log({.event = "train",
              .step = 120,
              .epoch = 1,
              .values = {
                  {"train/loss", 0.5312}, {"train/accuracy", 0.812}, {"lr", 1e-3}, {"time/data", 0.5}}});
  logger.log({.event = "evaluate", .step = 430, .epoch = 5, .values = {{"validation/loss", 0.41}}});
  logger.log({.event = "best", .step = 430, .epoch = 5, .values = {{"best/validation/loss", 0.41}}});
  logger.log({.event = "checkpoint", .step = 430, .epoch = 5, .text = "checkpoints/step-00000430"});
  logger.log({.event = "error", .step = 431, .epoch = 5, .text = "rank 3 is gone"});
  logger.info("hello");
  CATCH_REQUIRE(fixture.lines.str() ==
                "info: step 0/860  epoch 0  start\n"
                "info: step 120/860  epoch 1  train/loss 0.5312  train/accuracy 0.8120  lr 0.001000\n"
                "info: step 430/860  epoch 5  validation/loss 0.4100\n"
                "info: step 430/860  epoch 5  best\n"
                "info: step 430/860  epoch 5  checkpoint  checkpoints/step-00000430\n"
                "error: step 431/860  epoch 5  rank 3 is gone\n"
                "info: hello\n");
}

CATCH_TEST_CASE("training lines say how fast it goes, and are spaced by time") {
  const double seconds = GENERATE(1000.0, 0.0);
  Fixture fixture;
  auto logger = fixture.open({.seconds_between_lines = seconds});
  logger.begin({.plan = {.planned_steps = 860}});
  for (const std::int64_t step : {10, 20}) logger.log({.event = "train", .step = step});
  logger.log({.event = "evaluate", .step = 20});
  logger.begin({.plan = {.first_step = 20, .planned_steps = 860}});
  logger.log({.event = "train", .step = 30});
  std::vector<std::string> lines;
  std::istringstream text(fixture.lines.str());
  for (std::string line; std::getline(text, line);) lines.push_back(line.substr(0, line.find("  epoch")));
  if (seconds > 0) {
    CATCH_CHECK(lines ==
                std::vector<std::string>{"info: step 10/860", "info: step 20/860", "info: step 30/860"});
    CATCH_CHECK(fixture.lines.str().find("step 20/860  epoch 0\n") != std::string::npos);  // the evaluation
  } else {
    CATCH_CHECK(lines.size() == 4);
  }
  const std::string first = fixture.lines.str().substr(0, fixture.lines.str().find('\n'));
  CATCH_CHECK(first.find(" updates/s  0:0") != std::string::npos);
  CATCH_CHECK(first.rfind(" left") == first.size() - 5);
}

CATCH_TEST_CASE("a quiet logger shows warnings and errors only, and records everything") {
  Fixture fixture;
  auto logger = fixture.open({.quiet = true});
  logger.log({.event = "train", .step = 1});
  logger.info("hello");
  logger.warn("careful");
  logger.log({.event = "error", .step = 2, .text = "gone"});
  CATCH_REQUIRE(fixture.lines.str() == "warning: careful\nerror: step 2  epoch 0  gone\n");
  const std::string recorded = read_text(fixture.run_dir / "metrics.jsonl");
  CATCH_REQUIRE(recorded.find("\"train\"") != std::string::npos);
  CATCH_REQUIRE(recorded.find("\"error\"") != std::string::npos);
}

CATCH_TEST_CASE("a sink that throws is warned of once, tried again, and its losses are said at the end") {
  const char* event = GENERATE("throw", "throw int");
  Fixture fixture;
  auto failing = std::make_shared<RecordingSink>();
  auto other = std::make_shared<CountingSink>();
  auto logger = fixture.open({.quiet = true});
  logger.add_sink(failing);
  logger.add_sink(other);
  logger.log({.event = "first"});
  logger.log({.event = event});
  logger.log({.event = event});
  logger.log({.event = "last"});
  CATCH_CHECK(failing->events == std::vector<std::string>{"first", "last"});
  CATCH_CHECK(other->written == 4);
  const std::string warning = fixture.lines.str();
  CATCH_CHECK(warning.rfind("warning: the run's log cannot be written to the added sink 1: ", 0) == 0);
  CATCH_CHECK(warning.find('\n') == warning.size() - 1);
  CATCH_CHECK((warning.find("out of ink") != std::string::npos) == (event == std::string("throw")));

  logger.end();
  CATCH_CHECK(fixture.lines.str().substr(warning.size()) ==
              "warning: the added sink 1 of the run's log lacks 2 events that could not be written.\n");
}

CATCH_TEST_CASE("a full disk costs the events and leaves the other sinks alone") {
  Fixture fixture;
  std::filesystem::create_directories(fixture.run_dir);
  std::filesystem::create_symlink("/dev/full", fixture.run_dir / "metrics.jsonl");
  auto other = std::make_shared<CountingSink>();
  auto logger = fixture.open({.quiet = true, .tensorboard = false});
  logger.add_sink(other);
  for (int i = 0; i < 3; ++i) logger.log({.event = "train"});
  logger.end();
  CATCH_CHECK(other->written == 3);
  const std::string lines = fixture.lines.str();
  CATCH_CHECK(lines.find("No space left on device") != std::string::npos);
  CATCH_CHECK(lines.find("metrics.jsonl of the run's log lacks 3 events") != std::string::npos);
  CATCH_CHECK(std::count(lines.begin(), lines.end(), '\n') == 2);
}

CATCH_TEST_CASE("a sink learns of each call that begins, and when each event was") {
  Fixture fixture;
  const std::time_t before = std::time(nullptr);
  auto sink = std::make_shared<CountingSink>();
  auto logger = fixture.open({.quiet = true});
  logger.add_sink(sink);
  logger.begin({.plan = {.first_step = 7}, .run_id = "abc"});
  logger.log({.event = "train"});
  CATCH_CHECK(sink->last_start.plan.first_step == 7);
  CATCH_CHECK(sink->last_start.run_id == "abc");
  CATCH_CHECK(sink->last_time >= static_cast<double>(before));
  CATCH_CHECK(sink->last_time <= static_cast<double>(before) + 60);
}

CATCH_TEST_CASE("sinks are finished once for a run, also when the logger goes without end()") {
  const bool calls_end = GENERATE(true, false);
  Fixture fixture;
  auto sink = std::make_shared<RecordingSink>();
  {
    auto logger = fixture.open();
    logger.add_sink(sink);
    logger.log({.event = "start"});
    if (calls_end) logger.end();
  }
  CATCH_REQUIRE(sink->events == std::vector<std::string>{"start", "finished"});
}

CATCH_TEST_CASE("spdlog's registry and default logger stay the application's own") {
  const TemporaryDirectory directory;
  const auto before = spdlog::default_logger();
  RunLogger logger(directory.path(), {.quiet = true});
  logger.info("unseen");
  CATCH_REQUIRE(spdlog::get("lockstep") == nullptr);
  CATCH_REQUIRE(spdlog::default_logger() == before);
}

CATCH_TEST_CASE("on a terminal a bar is drawn below the lines and tears none of them") {
  const TemporaryDirectory directory;
  const Terminal terminal(60, [&] {
    RunLogger logger(directory.path());
    logger.begin({.plan = {.planned_steps = 4}});
    logger.log({.event = "start"});
    logger.log({.event = "train", .step = 1, .values = {{"train/loss", 0.5312}}});
    logger.progress(2);
    logger.warn("careful");
    logger.info("bye");
    logger.end();
  });
  CATCH_REQUIRE(terminal.exit_code() == 0);
  // Lines begin with the time, which is as long as "00:00:00  ".
  const auto screen = terminal.screen();
  CATCH_REQUIRE(screen.size() == 4);
  CATCH_CHECK(screen[0].substr(10) == "step 0/4  epoch 0  start");
  CATCH_CHECK(screen[1].substr(10) == "warning: careful");
  CATCH_CHECK(screen[2].substr(10) == "bye");
  CATCH_CHECK(screen[3].empty());
  CATCH_CHECK(terminal.output().find("\r 50% [") != std::string::npos);
  CATCH_CHECK(terminal.output().find("  loss 0.5312") != std::string::npos);
}

CATCH_TEST_CASE("the bar shows the best values under their prefix") {
  const TemporaryDirectory directory;
  const Terminal terminal(120, [&] {
    RunLogger logger(directory.path(), {.record_git = false});
    logger.begin({.plan = {.planned_steps = 4}});
    logger.log({.event = "best", .step = 1, .values = {{"best/validation/loss", 0.25}}});
    logger.log({.event = "train", .step = 2, .values = {{"train/loss", 0.5}, {"train/accuracy", 0.75}}});
    logger.progress(2);
    logger.info("bye");
    logger.end();
  });
  CATCH_CHECK(terminal.output().find("  loss 0.5000  best/validation/loss 0.2500  accuracy 0.7500") !=
              std::string::npos);
}

CATCH_TEST_CASE("a terminal without the means for a bar gets plain lines") {
  const char* setting = GENERATE("CI=1", "TERM=dumb", "TERM=");
  const TemporaryDirectory directory;
  const Terminal terminal(60, [&] {
    putenv(const_cast<char*>(setting));
    RunLogger logger(directory.path());
    logger.begin({.plan = {.planned_steps = 4}});
    logger.progress(1);
    logger.log({.event = "train", .step = 1, .values = {{"train/loss", 0.5312}}});
    logger.end();
  });
  CATCH_REQUIRE(terminal.screen().at(0).substr(10, 36) == "step 1/4  epoch 0  train/loss 0.5312");
  CATCH_REQUIRE(terminal.output().find("\x1b[K") == std::string::npos);
}

CATCH_TEST_CASE("NO_COLOR turns colours off and leaves the bar") {
  const bool colored = GENERATE(true, false);
  const TemporaryDirectory directory;
  const Terminal terminal(60, [&] {
    if (!colored) setenv("NO_COLOR", "1", 1);
    RunLogger logger(directory.path());
    logger.begin({.plan = {.planned_steps = 4}});
    logger.warn("careful");
    logger.end();
  });
  CATCH_REQUIRE((terminal.output().find("\x1b[33m") != std::string::npos) == colored);
  CATCH_REQUIRE(terminal.output().find("  0% [") != std::string::npos);
}

CATCH_TEST_CASE("a line without a logger goes to standard error") {
  const Terminal terminal(60, [] { info_on_console("by the way"); });
  CATCH_REQUIRE(terminal.screen().at(0).substr(10) == "by the way");
}

CATCH_TEST_CASE("a warning without a logger goes to standard error") {
  const Terminal terminal(60, [] { warn_on_console("careful"); });
  CATCH_REQUIRE(terminal.screen().at(0).substr(10) == "warning: careful");
}

CATCH_TEST_CASE("without files the folder is left alone, and the console and added sinks get every event") {
  Fixture fixture;
  const auto sink = std::make_shared<RecordingSink>();
  {
    RunLogger logger = fixture.open({.files = false});
    logger.add_sink(sink);
    logger.begin({.run_id = "a"});
    logger.log({.event = "train", .step = 1, .values = {{"train/loss", 0.5}}});
    logger.end();
  }
  CATCH_CHECK_FALSE(std::filesystem::exists(fixture.run_dir));
  CATCH_CHECK(sink->events == std::vector<std::string>{"train", "finished"});
  CATCH_CHECK(fixture.lines.str().find("train") != std::string::npos);
}

CATCH_TEST_CASE("a start for the console only keeps files and added sinks out until the end of the call") {
  Fixture fixture;
  const auto sink = std::make_shared<RecordingSink>();
  RunLogger logger = fixture.open();
  logger.add_sink(sink);
  logger.begin({.console_only = true});
  logger.log({.event = "train", .step = 1, .values = {{"train/loss", 0.5}}});
  logger.end();
  CATCH_CHECK(sink->events.empty());
  CATCH_CHECK(fixture.lines.str().find("train") != std::string::npos);
  CATCH_CHECK_FALSE(std::filesystem::exists(fixture.run_dir / "config.json"));
  CATCH_CHECK(read_text(fixture.run_dir / "metrics.jsonl").empty());
  logger.begin({.run_id = "b"});
  logger.log({.event = "train", .step = 2});
  logger.end();
  CATCH_CHECK(sink->events == std::vector<std::string>{"train", "finished"});
}
