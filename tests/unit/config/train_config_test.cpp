#include "lockstep/config/train_config.hpp"

#include <limits>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("the defaults with a number of epochs have no problems") {
  CATCH_REQUIRE(problems(TrainConfig{.epochs = 1}).empty());
}

CATCH_TEST_CASE("updates alone can end a run, and no epoch at all only evaluates") {
  CATCH_REQUIRE(problems(TrainConfig{.max_steps = 10}).empty());
  CATCH_REQUIRE(problems(TrainConfig{.epochs = 0}).empty());
}

CATCH_TEST_CASE("a monitor with all its options has no problems") {
  const Monitor monitor("validation/accuracy", {Direction::maximize, 3, 0.01, 2});
  CATCH_REQUIRE(problems(TrainConfig{.epochs = 5, .max_grad_norm = 1.0, .monitor = monitor}).empty());
}

CATCH_TEST_CASE("checkpoints may be due by the clock") {
  CATCH_REQUIRE(problems(TrainConfig{.epochs = 1, .checkpoint_every = Interval::young_daly(std::chrono::hours(1))}).empty());
}

CATCH_TEST_CASE("every mistake in the settings is named by its field") {
  const double inf = std::numeric_limits<double>::infinity();
  const Interval never{.every = 0, .unit = Interval::Unit::step};
  const Interval timed{.every = 30, .unit = Interval::Unit::second};
  const auto watch = [](const char* metric, MonitorOptions options) {
    return TrainConfig{.epochs = 1, .monitor = Monitor(metric, options)};
  };
  const auto [config, field] = GENERATE_REF(table<TrainConfig, const char*>({
      {TrainConfig{}, "neither epochs nor max_steps is set"},
      {TrainConfig{.epochs = -1}, "epochs is -1"},
      {TrainConfig{.epochs = 1, .max_steps = 0}, "max_steps is 0"},
      {TrainConfig{.epochs = 1, .limit_train_batches = 0}, "limit_train_batches is 0"},
      {TrainConfig{.epochs = 1, .limit_evaluation_batches = 1.5}, "limit_evaluation_batches is 1.5"},
      {TrainConfig{.epochs = 1, .log_every = 0}, "log_every is 0"},
      {TrainConfig{.epochs = 1, .evaluate_every = never}, "evaluate_every is every 0"},
      {TrainConfig{.epochs = 1, .log_histograms_every = never}, "log_histograms_every is every 0"},
      {TrainConfig{.epochs = 1, .check_ranks_every = never}, "check_ranks_every is every 0"},
      {TrainConfig{.epochs = 1, .checkpoint_every = never}, "checkpoint_every is every 0"},
      {TrainConfig{.epochs = 1, .keep_checkpoints = 0}, "keep_checkpoints is 0"},
      {TrainConfig{.epochs = 1, .background_saves = false, .skip_busy_saves = true}, "skip_busy_saves is set but"},
      {TrainConfig{.epochs = 1, .checkpoint_every = {}, .skip_busy_saves = true}, "skip_busy_saves is set but"},
      {TrainConfig{.epochs = 1, .evaluate_every = timed}, "evaluate_every is \"30 seconds\": only checkpoint_every"},
      {TrainConfig{.epochs = 1, .log_histograms_every = timed}, "log_histograms_every is \"30 seconds\""},
      {TrainConfig{.epochs = 1, .check_ranks_every = timed}, "check_ranks_every is \"30 seconds\""},
      {TrainConfig{.epochs = 1, .max_grad_norm = 0.0}, "max_grad_norm is 0"},
      {TrainConfig{.epochs = 1, .max_grad_norm = inf}, "max_grad_norm is inf"},
      {TrainConfig{.epochs = 1, .max_grad_value = -1.0}, "max_grad_value is -1"},
      {watch("loss", {}), "monitor watches \"loss\""},
      {watch("validation/", {}), "monitor watches \"validation/\""},
      {watch("validation/loss", {.patience = 0}), "monitor.patience is 0"},
      {watch("validation/loss", {.min_delta = -1}), "monitor.min_delta is -1"},
      {watch("validation/loss", {.patience = 1, .start_epoch = -1}), "monitor.start_epoch is -1"},
      {watch("validation/loss", {.start_epoch = 3}), "monitor.start_epoch is 3 but would be ignored"},
      {TrainConfig{.epochs = 1, .evaluate_every = {}, .monitor = Monitor("validation/loss")},
       "monitor watches \"validation/loss\" but evaluate_every is unset"},
      {TrainConfig{.epochs = 1, .evaluate_every = {}, .evaluate_first = true}, "evaluate_first is set but"},
      {TrainConfig{.epochs = 1, .evaluate_every = {}, .evaluate_raw = true}, "evaluate_raw is set but"},
      {TrainConfig{.epochs = 1, .evaluate_every = {}, .limit_evaluation_batches = 1},
       "limit_evaluation_batches is set but"},
      {TrainConfig{.epochs = 1, .restore_best = true}, "restore_best is set but"},
  }));
  const auto found = problems(config);
  CATCH_CAPTURE(field);
  CATCH_REQUIRE(found.size() == 1);
  CATCH_REQUIRE(found.front().rfind(field, 0) == 0);
}

CATCH_TEST_CASE("all mistakes are found at once") {
  CATCH_REQUIRE(problems(TrainConfig{.epochs = -1, .max_steps = 0, .log_every = 0}).size() == 3);
}
