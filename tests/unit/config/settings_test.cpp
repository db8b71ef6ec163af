#include "lockstep/config/settings.hpp"

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/temporary_directory.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using nlohmann::json;

namespace {

/// The text of the `invalid-settings` error of finish(), "" if there is none.
std::string complaint(Settings& settings) {
  try {
    settings.finish();
  } catch (const ConfigError& error) {
    return error.id() == "invalid-settings" ? error.what() : "another error";
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

template <class T>
T read(const std::string& document, const std::string& key, T value) {
  Settings settings;
  settings.merge(document, "the test");
  settings.read(key, value);
  settings.finish();
  return value;
}

/// Sets an environment variable while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace

CATCH_TEST_CASE("what no layer says keeps the program's default") {
  const TrainConfig config =
      read(R"({"train": {"max_steps": 7, "monitor": {"patience": 3}}})", "train",
           TrainConfig{.epochs = 4, .log_every = 2, .monitor = Monitor("validation/loss")});
  CATCH_REQUIRE(config.epochs == 4);
  CATCH_REQUIRE(config.max_steps == 7);
  CATCH_REQUIRE(config.log_every == 2);
  CATCH_REQUIRE(config.monitor == Monitor("validation/loss", {.patience = 3}));
}

CATCH_TEST_CASE("null unsets what may be unset") {
  const TrainConfig config = read(R"({"train": {"evaluate_every": null, "monitor": null}})", "train",
                                  TrainConfig{.epochs = 4, .monitor = Monitor("validation/loss")});
  CATCH_REQUIRE_FALSE(config.evaluate_every.has_value());
  CATCH_REQUIRE_FALSE(config.monitor.has_value());
}

CATCH_TEST_CASE("each kind of value is read") {
  CATCH_REQUIRE(read(R"({"a": true})", "a", false));
  CATCH_REQUIRE(read(R"({"a": -3})", "a", 0) == -3);
  CATCH_REQUIRE(read(R"({"a": 18446744073709551615})", "a", std::uint64_t{}) == ~std::uint64_t{});
  CATCH_REQUIRE(read(R"({"model": {"width": 12}})", "model.width", std::int64_t{}) == 12);
  CATCH_REQUIRE(read(R"({"a": 0.5})", "a", std::optional<double>()) == 0.5);
  CATCH_REQUIRE(read(R"({"a": "text"})", "a", std::string()) == "text");
  CATCH_REQUIRE(read(R"({"a": "b/c"})", "a", std::filesystem::path()) == "b/c");
  CATCH_REQUIRE(read(R"({"a": "bf16-mixed"})", "a", Precision::fp32) == Precision::bf16_mixed);
  CATCH_REQUIRE(read(R"({"a": "500 steps"})", "a", Interval{}) == Interval{500, Interval::Unit::step});
  CATCH_REQUIRE(read(R"({"a": 0.25})", "a", std::optional<BatchLimit>()) == BatchLimit(0.25));
  CATCH_REQUIRE(read(R"({"a": {"growth_interval": 5}})", "a", LossScalerOptions{}).growth_interval == 5);
  CATCH_REQUIRE(read(R"({"a": {"workers": 2}})", "a", DataLoaderOptions{.batch_size = 8}) ==
                DataLoaderOptions{.batch_size = 8, .workers = 2});
}

CATCH_TEST_CASE(
    "a schedule of the default's kind goes on from the default, one of another kind from its own") {
  const WarmupDecay planned{.total_steps = 100, .warmup_steps = 5};
  CATCH_REQUIRE(read<Schedule>(R"({"s": {"warmup_decay": {"warmup_steps": 9}}})", "s", planned) ==
                Schedule(WarmupDecay{.total_steps = 100, .warmup_steps = 9}));
  CATCH_REQUIRE(read<Schedule>(R"({"s": {"one_cycle": {"total_steps": 9}}})", "s", planned) ==
                Schedule(OneCycle{.total_steps = 9}));
  CATCH_REQUIRE(read<std::optional<Schedule>>(R"({"s": {"exponential_decay": {"gamma": 0.5}}})", "s", {}) ==
                Schedule(ExponentialDecay{0.5}));
}

CATCH_TEST_CASE("file, environment, flag and assignment win over each other in the order they are added") {
  test::TemporaryDirectory folder;
  test::write_text(folder.path() / "run.json", R"({"train": {"epochs": 1, "max_steps": 1, "log_every": 1,
                                                             "keep_checkpoints": 1}})");
  const Variable epochs("PROGRAM_TRAIN__MAX_STEPS", "2");
  const Variable every("PROGRAM_TRAIN__LOG_EVERY", "2");
  const Variable keep("PROGRAM_TRAIN__KEEP_CHECKPOINTS", "2");
  Settings settings;
  settings.merge_file(folder.path() / "run.json");
  settings.merge_environment("PROGRAM_");
  settings.assign("train.log_every", "3", "--log-every");
  settings.assign("train.keep_checkpoints", "3", "--keep");
  settings.assign("train.keep_checkpoints=4");
  TrainConfig config;
  settings.read("train", config);
  settings.finish();
  CATCH_REQUIRE(config.epochs == 1);
  CATCH_REQUIRE(config.max_steps == 2);
  CATCH_REQUIRE(config.log_every == 3);
  CATCH_REQUIRE(config.keep_checkpoints == 4);
}

CATCH_TEST_CASE("a variable of the prefix that names no section means something else") {
  const Variable other("PROGRAM_CACHE", "1");
  const Variable misspelt("PROGRAM_TRAIN__EPOCH", "1");
  Settings settings;
  settings.merge_environment("PROGRAM_");
  TrainConfig config;
  settings.read("train", config);
  const std::string text = complaint(settings);
  CATCH_REQUIRE(
      contains(text, R"("/train/epoch" (from PROGRAM_TRAIN__EPOCH) is not known (did you mean "epochs"?))"));
  CATCH_REQUIRE_FALSE(contains(text, "cache"));
}

CATCH_TEST_CASE("an assigned text is JSON where it can be, else a string") {
  Settings settings;
  settings.assign("train.evaluate_every=1 epoch");
  settings.assign("train.max_grad_norm=null");
  settings.assign(R"(schedule={"exponential_decay": {"gamma": 0.5}})");
  settings.assign("name=a=b");
  settings.assign("run.dir=2024");
  TrainConfig config{.max_grad_norm = 1.0};
  std::optional<Schedule> schedule;
  std::string name;
  std::filesystem::path dir;
  settings.read("train", config);
  settings.read("schedule", schedule);
  settings.read("name", name);
  settings.read("run.dir", dir);
  settings.finish();
  CATCH_REQUIRE(config.evaluate_every == Interval{1, Interval::Unit::epoch});
  CATCH_REQUIRE_FALSE(config.max_grad_norm.has_value());
  CATCH_REQUIRE(schedule == Schedule(ExponentialDecay{0.5}));
  CATCH_REQUIRE(name == "a=b");
  CATCH_REQUIRE(dir == "2024");
}

CATCH_TEST_CASE("a number in a file is no string, not even where a text stood before") {
  Settings settings;
  settings.assign("name=2024");
  settings.merge(R"({"name": 5})", "late.json");
  std::string name;
  settings.read("name", name);
  CATCH_REQUIRE(contains(complaint(settings), R"("/name" (from late.json) is 5, give a string.)"));
}

CATCH_TEST_CASE("one error lists every mistake, where it came from and what to do") {
  Settings settings;
  settings.merge(R"({"train": {"epochs": "four", "max_step": 5, "monitor": {"metric": "validation/loss",
                     "direction": "up"}}, "max_steps": 3, "model": {"wdith": 64}, "loader": 5,
                     "schedule": {"cosine": {"total_steps": 5}}})",
                 "run.json");
  settings.assign("train.log_every=often");
  settings.assign("train.epochs");
  TrainConfig config{.epochs = 4};
  std::int64_t width = 1;
  DataLoaderOptions loader;
  std::optional<Schedule> schedule;
  settings.read("train", config);
  settings.read("model.width", width);
  settings.read("loader.batch_size", loader.batch_size);
  settings.read("loader.workers", loader.workers);
  settings.read("schedule", schedule);
  settings.refuse("model.depth", "is odd, give an even one");
  const std::string text = complaint(settings);
  CATCH_CAPTURE(text);
  CATCH_REQUIRE(contains(text, R"("/train/epochs" (from run.json) is "four", give an integer from )"));
  CATCH_REQUIRE(
      contains(text, R"("/train/log_every" (from train.log_every=often) is "often", give an integer)"));
  CATCH_REQUIRE(
      contains(text, R"("/train/monitor/direction" (from run.json) is "up", give one of ["minimize",)"));
  CATCH_REQUIRE(
      contains(text, R"("/train/max_step" (from run.json) is not known (did you mean "max_steps"?))"));
  CATCH_REQUIRE(
      contains(text, R"("/max_steps" (from run.json) is not known (did you mean "/train/max_steps"?))"));
  CATCH_REQUIRE(contains(text, R"("/model/wdith" (from run.json) is not known (did you mean "width"?))"));
  CATCH_REQUIRE(contains(text, R"("/loader" (from run.json) is 5, give an object.)"));
  CATCH_REQUIRE(
      contains(text, R"("/schedule/cosine" (from run.json) is no schedule, give one of warmup_decay, )"));
  CATCH_REQUIRE(contains(text, R"("/model/depth" is odd, give an even one.)"));
  CATCH_REQUIRE(contains(text, "is no assignment, write one as in train.max_steps=500"));
  CATCH_REQUIRE(std::count(text.begin(), text.end(), '\n') == 10);
  CATCH_REQUIRE(config.epochs == 4);
}

CATCH_TEST_CASE("text that is no JSON object is refused with its source and place") {
  Settings settings;
  const auto what = [&](const char* text) -> std::string {
    try {
      settings.merge(text, "run.json");
    } catch (const ConfigError& error) {
      return error.id() == "invalid-json-text" ? error.what() : "";
    }
    return "";
  };
  CATCH_REQUIRE(contains(what("{\n  \"a\": 1,\n}"), "run.json is no JSON from line 3, column 1 on"));
  CATCH_REQUIRE(contains(what("[1]"), "run.json holds no object"));
  CATCH_REQUIRE(test::thrown_id<FileError>([&] { settings.merge_file("/no/such/file"); }) ==
                "cannot-read-file");
}

CATCH_TEST_CASE("the resolved settings hold what was read, and give the same when read again") {
  const auto read_all = [](Settings& settings) {
    TrainConfig config{.epochs = 4};
    std::int64_t width = 64;
    Schedule schedule = WarmupDecay{.total_steps = 10};
    settings.read("train", config);
    settings.read("model.width", width);
    settings.read("schedule", schedule);
    settings.finish();
    return settings.resolved();
  };
  Settings first;
  first.assign("model.width=8");
  first.assign("train.evaluate_every=5 steps");
  const std::string resolved = read_all(first);
  CATCH_REQUIRE(json::parse(resolved)["model"] == json::parse(R"({"width": 8})"));
  CATCH_REQUIRE(json::parse(resolved)["train"]["epochs"] == 4);
  CATCH_REQUIRE(json::parse(resolved)["train"]["evaluate_every"] == "5 steps");
  CATCH_REQUIRE(json::parse(resolved)["schedule"]["warmup_decay"]["total_steps"] == 10);
  Settings second;
  second.merge(resolved, "resolved");
  CATCH_REQUIRE(read_all(second) == resolved);
}
