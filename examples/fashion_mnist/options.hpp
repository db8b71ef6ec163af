// What the command line says.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <lockstep/config/interval.hpp>
#include <optional>

namespace CLI {
class App;
}

struct Options {
  std::filesystem::path run_dir = "runs/fashion-mnist";
  std::filesystem::path data_dir = "/usr/share/datasets/fashion-mnist";
  std::int64_t epochs = 4;
  std::optional<std::int64_t> max_steps = {};
  std::int64_t batch_size = 64;
  std::int64_t accumulate = 2;
  /// Averages over the last hundred updates or so: short beside the 1,720 of the default run.
  double ema_decay = 0.99;
  double lr = 3e-3;
  std::uint64_t seed = 7;
  int workers = 1;
  std::optional<at::Device> device = {};
  lockstep::Interval evaluate_every = {.every = 1, .unit = lockstep::Interval::Unit::epoch};
  lockstep::Interval checkpoint_every = {.every = 100, .unit = lockstep::Interval::Unit::step};
  bool no_evaluate = false;
  bool resume = true;
  bool quiet = false;
};

/// Makes `app` write what it parses to `options`, which outlives it.
void add_flags(CLI::App& app, Options& options);
