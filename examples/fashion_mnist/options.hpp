// What a configuration file, the environment and the command line say.
#pragma once

#include <filesystem>
#include <lockstep/config/data_loader_options.hpp>
#include <lockstep/config/schedule.hpp>
#include <lockstep/config/train_config.hpp>
#include <lockstep/ranks/accelerator.hpp>
#include <optional>
#include <string>

namespace CLI {
class App;
}

struct Options {
  std::filesystem::path run_dir = "runs/fashion-mnist";
  bool resume = true;
  bool quiet = false;
  std::filesystem::path data_dir = "/usr/share/datasets/fashion-mnist";
  lockstep::AcceleratorOptions accelerator = {.gradient_accumulation_steps = 2, .seed = 7};
  /// Of the training images.
  lockstep::DataLoaderOptions loader = {.batch_size = 64, .shuffle = true, .seed = 7, .workers = 1};
  double lr = 3e-3;
  double weight_decay = 0.05;
  /// Averages over the last hundred updates or so: short beside the 1,720 of the default run.
  double ema_decay = 0.99;
  lockstep::TrainConfig train = {
      .epochs = 4,
      .checkpoint_every = lockstep::Interval{.every = 100, .unit = lockstep::Interval::Unit::step},
      .keep_checkpoints = 2,
      .max_grad_norm = 1.0,
      .monitor = lockstep::Monitor("validation/loss")};
  /// Unset: WarmupDecay over the planned updates, the first twentieth of them warm-up.
  std::optional<lockstep::Schedule> schedule = {};
  /// What the schedule counts; unset: updates.
  std::optional<lockstep::Interval> schedule_every = {};
};

struct CommandLine {
  Options options;
  std::string settings;  ///< all of it as JSON, defaults included; what --config takes
};

/// Adds the flags to `app`, parses, and reads every layer: --config, then LOCKSTEP_..., then flags, then
/// --set. Throws CLI::ParseError, which `app` can print, for whatever is wrong with them.
CommandLine read_command_line(CLI::App& app, int argc, const char* const* argv);
