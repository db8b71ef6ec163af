#include "options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <lockstep/base/error.hpp>
#include <lockstep/config/settings.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ls = lockstep;

namespace {

/// What one flag says about one key.
struct Assignment {
  std::string key;
  std::string text;
  std::string flag;
};

/// Flags that are keys of the settings by another name.
class KeyFlags {
 public:
  /// `defaults` as JSON, for the help.
  KeyFlags(CLI::App& app, const std::string& defaults)
      : app_(app), defaults_(nlohmann::json::parse(defaults)) {}

  void add(const std::string& flag, const std::vector<std::string>& keys, const std::string& type,
           const std::string& help) {
    const auto note = [this, flag, keys](const std::string& text) {
      for (const auto& key : keys) given_.push_back({key, text, flag});
    };
    auto* const option = app_.add_option_function<std::string>(flag, note, help + " (" + keys.front() + ")");
    option->type_name(type);
    std::string pointer = "/" + keys.front();
    std::replace(pointer.begin(), pointer.end(), '.', '/');
    const auto& value = defaults_.at(nlohmann::json::json_pointer(pointer));
    if (!value.is_null()) option->default_str(value.is_string() ? value.get<std::string>() : value.dump());
  }

  /// A flag without a value, which assigns `text`.
  void add_switch(const std::string& flag, const std::vector<std::string>& keys, const std::string& text,
                  const std::string& help) {
    const auto note = [this, flag, keys, text](std::int64_t) {
      for (const auto& key : keys) given_.push_back({key, text, flag});
    };
    app_.add_flag_function(flag, note, help);
  }

  [[nodiscard]] const std::vector<Assignment>& given() const { return given_; }

 private:
  CLI::App& app_;
  nlohmann::json defaults_;
  std::vector<Assignment> given_;
};

void add_flags(KeyFlags& flags) {
  flags.add("--run-dir", {"run.dir"}, "DIR", "Where logs, checkpoints and the trained weights go");
  flags.add("--data-dir", {"data.dir"}, "DIR", "The folder of Fashion-MNIST's four files");
  flags.add("--epochs", {"train.epochs"}, "N", "Passes over the training images, resumed ones included");
  flags.add("--max-steps", {"train.max_steps"}, "N", "Updates at which to end, if that comes first");
  flags.add("--batch-size", {"loader.batch_size"}, "N", "Images in a microbatch");
  flags.add("--accumulate", {"accelerator.gradient_accumulation_steps"}, "N",
            "Microbatches behind an update");
  flags.add("--precision", {"accelerator.precision"}, "TYPE", "fp32, fp64, bf16, fp16, bf16-mixed or fp16-mixed");
  flags.add("--ema-decay", {"trainer.ema_decay"}, "X",
            "Decay of the averaged weights at each update, below 1");
  flags.add("--lr", {"optimizer.lr"}, "X", "Learning rate after the warm-up");
  flags.add("--seed", {"accelerator.seed", "loader.seed"}, "N",
            "Of initial weights, order of images, augmentation and dropout");
  flags.add("--workers", {"loader.workers"}, "N", "Threads that prepare batches; changes no result");
  flags.add("--device", {"accelerator.device"}, "DEVICE",
            "cpu, cuda or cuda:1; by default CUDA if there is one");
  flags.add("--evaluate-every", {"train.evaluate_every"}, "INTERVAL", "Updates, or as in \"1 epoch\"");
  flags.add("--checkpoint-every", {"train.checkpoint_every"}, "INTERVAL", "Updates, or as in \"1 epoch\"");
  flags.add_switch("--no-evaluate", {"train.evaluate_every", "train.monitor"}, "null",
                   "Neither validation nor test");
  flags.add_switch("--resume", {"run.resume"}, "true",
                   "Go on from the newest checkpoint in the run folder (default)");
  flags.add_switch("--no-resume", {"run.resume"}, "false",
                   "Start anew; the run folder must hold no checkpoint");
  flags.add_switch("--quiet", {"run.quiet"}, "true", "Only warnings, errors and the result");
}

CommandLine read_settings(ls::Settings& settings) {
  Options options;
  settings.read("run.dir", options.run_dir);
  settings.read("run.resume", options.resume);
  settings.read("run.quiet", options.quiet);
  settings.read("data.dir", options.data_dir);
  read(settings, "accelerator", options.accelerator);
  settings.read("loader", options.loader);
  settings.read("optimizer.lr", options.lr);
  settings.read("optimizer.weight_decay", options.weight_decay);
  settings.read("trainer.ema_decay", options.ema_decay);
  settings.read("train", options.train);
  settings.read("schedule", options.schedule);
  settings.read("schedule_every", options.schedule_every);
  settings.finish();
  return {options, settings.resolved()};
}

}  // namespace

CommandLine read_command_line(CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> files;
  std::vector<std::string> assignments;
  app.add_option("--config", files, "Settings as JSON; a later file wins over an earlier one")

      ->type_name("FILE")
      ->allow_extra_args(false);
  ls::Settings no_layer;
  KeyFlags flags(app, read_settings(no_layer).settings);
  add_flags(flags);
  app.add_option("--set", assignments, "Any setting by its key, as in --set train.log_every=50")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.footer(
      "A setting comes from --set, else from its flag, else from the environment\n"
      "(LOCKSTEP_TRAIN__MAX_STEPS=500), else from --config, else it is the default.\n"
      "Each flag's key is in parentheses; docs/configuration.md lists all keys.");
  app.parse(argc, argv);
  try {
    ls::Settings settings;
    for (const auto& file : files) settings.merge_file(file);
    settings.merge_environment("LOCKSTEP_");
    for (const auto& [key, text, flag] : flags.given()) settings.assign(key, text, flag);
    for (const auto& assignment : assignments) settings.assign(assignment);
    return read_settings(settings);
  } catch (const ls::Error& error) {
    throw CLI::ValidationError("settings", error.what());
  }
}
