#include "options.hpp"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/temporary_directory.hpp"

namespace ls = lockstep;

namespace {

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "fashion_mnist");
  CLI::App app;
  return read_command_line(app, static_cast<int>(arguments.size()), arguments.data());
}

std::string refusal(const std::vector<const char*>& arguments) {
  try {
    (void)parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

CATCH_TEST_CASE("without arguments everything is as the program's defaults say") {
  const Options options = parse({}).options;
  CATCH_REQUIRE(options.train.epochs == 4);
  CATCH_REQUIRE(options.loader == Options{}.loader);
  CATCH_REQUIRE(options.accelerator.seed == 7);
  CATCH_REQUIRE(options.train.monitor == ls::Monitor("validation/loss"));
  CATCH_REQUIRE_FALSE(options.schedule.has_value());
  CATCH_REQUIRE(options.resume);
}

CATCH_TEST_CASE("each flag reaches its setting") {
  const Options options =
      parse({"--run-dir",        "2024",       "--data-dir",         "d",        "--epochs",     "2",
             "--max-steps",      "9",          "--batch-size",       "8",        "--accumulate", "3",
             "--precision",      "bf16-mixed", "--ema-decay",        "0.5",      "--lr",         "1e-2",
             "--seed",           "11",         "--workers",          "0",        "--device",     "cpu",
             "--evaluate-every", "50",         "--checkpoint-every", "2 epochs", "--no-resume",  "--quiet"})
          .options;
  CATCH_REQUIRE(options.run_dir == "2024");
  CATCH_REQUIRE(options.data_dir == "d");
  CATCH_REQUIRE(options.train.epochs == 2);
  CATCH_REQUIRE(options.train.max_steps == 9);
  CATCH_REQUIRE(options.loader ==
                ls::DataLoaderOptions{.batch_size = 8, .shuffle = true, .seed = 11, .workers = 0});
  CATCH_REQUIRE(options.accelerator.gradient_accumulation_steps == 3);
  CATCH_REQUIRE(options.accelerator.precision == ls::Precision::bf16_mixed);
  CATCH_REQUIRE(options.accelerator.seed == 11);
  CATCH_REQUIRE(options.accelerator.device == at::Device(at::kCPU));
  CATCH_REQUIRE(options.ema_decay == 0.5);
  CATCH_REQUIRE(options.lr == 1e-2);
  CATCH_REQUIRE(options.train.evaluate_every == ls::Interval{50, ls::Interval::Unit::step});
  CATCH_REQUIRE(options.train.checkpoint_every == ls::Interval{2, ls::Interval::Unit::epoch});
  CATCH_REQUIRE_FALSE(options.resume);
  CATCH_REQUIRE(options.quiet);
}

CATCH_TEST_CASE("the help names each flag's key and default") {
  CLI::App app;
  const char* const arguments[] = {"fashion_mnist", "--help"};
  CATCH_REQUIRE_THROWS_AS(read_command_line(app, 2, arguments), CLI::CallForHelp);
  const std::string help = app.help();
  CATCH_CAPTURE(help);
  CATCH_REQUIRE(contains(help, "--batch-size N"));
  CATCH_REQUIRE(contains(help, "(loader.batch_size)"));
  CATCH_REQUIRE(contains(help, "100 steps"));
}

CATCH_TEST_CASE("no evaluation means no monitor either") {
  const Options options = parse({"--no-evaluate"}).options;
  CATCH_REQUIRE_FALSE(options.train.evaluate_every.has_value());
  CATCH_REQUIRE_FALSE(options.train.monitor.has_value());
}

CATCH_TEST_CASE("an assignment wins over a flag, a flag over the environment, that over a file") {
  ls::test::TemporaryDirectory folder;
  const auto file = folder.path() / "run.json";
  ls::test::write_text(file,
                       R"({"train": {"epochs": 10, "max_steps": 10, "log_every": 10, "keep_checkpoints": 10},
                                 "schedule": {"exponential_decay": {"gamma": 0.5}},
                                 "schedule_every": "1 epoch"})");
  setenv("LOCKSTEP_TRAIN__MAX_STEPS", "20", 1);
  setenv("LOCKSTEP_TRAIN__EPOCHS", "20", 1);
  setenv("LOCKSTEP_TRAIN__KEEP_CHECKPOINTS", "20", 1);
  const Options options = parse({"--set", "train.epochs=40", "--set", "train.monitor.patience=3", "--epochs",
                                 "30", "--max-steps", "30", "--config", file.c_str()})
                              .options;
  for (const auto* name :
       {"LOCKSTEP_TRAIN__MAX_STEPS", "LOCKSTEP_TRAIN__EPOCHS", "LOCKSTEP_TRAIN__KEEP_CHECKPOINTS"}) {
    unsetenv(name);
  }
  CATCH_REQUIRE(options.train.epochs == 40);
  CATCH_REQUIRE(options.train.max_steps == 30);
  CATCH_REQUIRE(options.train.keep_checkpoints == 20);
  CATCH_REQUIRE(options.train.log_every == 10);
  CATCH_REQUIRE(options.train.monitor == ls::Monitor("validation/loss", {.patience = 3}));
  CATCH_REQUIRE(options.schedule == ls::Schedule(ls::ExponentialDecay{0.5}));
  CATCH_REQUIRE(options.schedule_every == ls::Interval{1, ls::Interval::Unit::epoch});
}

CATCH_TEST_CASE("the settings that were printed give the same run again") {
  ls::test::TemporaryDirectory folder;
  const auto file = folder.path() / "again.json";
  const std::string settings = parse({"--seed", "3", "--set", "optimizer.weight_decay=0.1"}).settings;
  ls::test::write_text(file, settings);
  CATCH_REQUIRE(contains(settings, "\"weight_decay\": 0.1"));
  CATCH_REQUIRE(parse({"--config", file.c_str()}).settings == settings);
}

CATCH_TEST_CASE("all that is wrong is said at once, with the flag it came from") {
  const std::string text = refusal({"--epochs", "four", "--seed", "-1", "--device", "gpu", "--set",
                                    "train.epoch=3", "--set", "optimiser.lr=1"});
  CATCH_CAPTURE(text);
  CATCH_REQUIRE(contains(text, "\"/train/epochs\" (from --epochs) is \"four\""));
  CATCH_REQUIRE(contains(text, "\"/accelerator/seed\" (from --seed) is -1"));
  CATCH_REQUIRE(contains(text, "\"/accelerator/device\" (from --device) is \"gpu\""));
  CATCH_REQUIRE(contains(text, "(did you mean \"epochs\"?)"));
  CATCH_REQUIRE(contains(text, "(did you mean \"optimizer\"?)"));
  CATCH_REQUIRE_FALSE(refusal({"--epoch", "3"}).empty());
}
