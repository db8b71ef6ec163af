#include "config/json.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"

using namespace lockstep;
using nlohmann::json;

namespace {

template <class T>
T reread(const T& value) {
  return read_json<T>(json::parse(to_json(value).dump()));
}

/// The text of the `invalid-json-field` error of reading `document` as a T.
template <class T>
std::string complaint(const json& document) {
  try {
    (void)read_json<T>(document);
  } catch (const ConfigError& error) {
    return error.id() == "invalid-json-field" ? error.what() : "";
  }
  return "";
}

TrainState state_with(double best_metric) { return {.best_metric = best_metric}; }

}  // namespace

CATCH_TEST_CASE("a TrainState is written with every field by its name") {
  const TrainState state{.epoch = 1,
                         .next_batch = 2,
                         .step = 3,
                         .batches = 4,
                         .samples = 5,
                         .best_metric = 0.25,
                         .best_step = 6,
                         .evaluations_without_improvement = 7,
                         .stop_reason = "SIGINT",
                         .end = EndReason::stop_request};
  CATCH_REQUIRE(to_json(state) ==
                json::parse(R"({"epoch": 1, "next_batch": 2, "step": 3, "batches": 4, "samples": 5,
      "best_metric": 0.25, "best_step": 6, "evaluations_without_improvement": 7, "stop_reason": "SIGINT",
      "end": "stop_request"})"));
  CATCH_REQUIRE(reread(state) == state);
  CATCH_REQUIRE(reread(TrainState{}) == TrainState{});
}

CATCH_TEST_CASE("every reason for an end is read back") {
  using enum EndReason;
  const EndReason reason = GENERATE(none, epochs, max_steps, early_stop, stop_request);
  CATCH_REQUIRE(reread(TrainState{.end = reason}).end == reason);
}

CATCH_TEST_CASE("a schedule is written by its kind, with its named fields") {
  const Schedule schedule = WarmupDecay{100, 10, 0.5, 0.25, WarmupDecay::Decay::linear};
  CATCH_REQUIRE(to_json(schedule) ==
                json::parse(R"({"warmup_decay": {"total_steps": 100, "warmup_steps": 10, "start_factor": 0.5,
      "minimum_factor": 0.25, "decay": "linear"}})"));
}

CATCH_TEST_CASE("every kind of schedule is read back as it was") {
  const Schedule schedule = GENERATE(
      Schedule(WarmupDecay{100, 10, 0.5, 0.25, WarmupDecay::Decay::constant}), MultiStepDecay{{3, 5}, 0.2},
      ExponentialDecay{0.9}, PolynomialDecay{10, 2, 0.1}, InverseSqrtDecay{4, 0.1}, CosineRestarts{5, 2, 0.1},
      OneCycle{50, 0.2, 0.1, 0.01, OneCycle::Anneal::linear, true},
      WarmupStableDecay{50, 5, 10, 0.1, 0.2, WarmupStableDecay::Decay::one_minus_sqrt},
      SequentialSchedule{{ExponentialDecay{0.5}, SequentialSchedule{{CosineRestarts{2}, OneCycle{9}}, {7}}},
                         {3}},
      Plateau{"validation/accuracy", Direction::maximize, 0.3, 4, 0.5, Plateau::ThresholdMode::absolute, 2,
              0.01});
  CATCH_CAPTURE(schedule.kind());
  CATCH_REQUIRE(reread(schedule) == schedule);
}

CATCH_TEST_CASE("of a function only the name is written") {
  const LambdaSchedule halves{"halves", [](std::int64_t) { return 0.5; }};
  CATCH_REQUIRE(to_json<Schedule>(halves) == json::parse(R"({"lambda": {"name": "halves"}})"));
  const Schedule read = reread<Schedule>(halves);
  CATCH_REQUIRE(read == Schedule(halves));
  CATCH_REQUIRE(problems(read).size() == 1);
}

CATCH_TEST_CASE("a schedule of no known kind, or of two, is refused") {
  CATCH_REQUIRE(complaint<Schedule>({{"cosine", json::object()}})
                    .find("\"/cosine\" is no schedule, give one of "
                          "warmup_decay, multi_step_decay") != std::string::npos);
  const json one_cycle = to_json<Schedule>(OneCycle{10});
  json two = to_json<Schedule>(WarmupDecay{10});
  two.update(one_cycle);
  CATCH_REQUIRE(complaint<Schedule>(two).find("one schedule by its kind") != std::string::npos);
}

CATCH_TEST_CASE("a mistake inside a part of a sequence is found by its pointer") {
  json sequence = to_json<Schedule>(SequentialSchedule{{ExponentialDecay{0.5}, ExponentialDecay{0.25}}, {3}});
  sequence["sequential"]["parts"][1]["exponential_decay"]["gama"] = 1;
  CATCH_REQUIRE(complaint<Schedule>(sequence).find(
                    R"("/sequential/parts/1/exponential_decay/gama" is not known (did you mean "gamma"?)") !=
                std::string::npos);
}

CATCH_TEST_CASE("the state of a plateau is written with every field by its name") {
  const PlateauState state{.factor = 0.01, .best = 0.5, .bad_evaluations = 3, .cooldown_left = 2};
  CATCH_REQUIRE(to_json(state) ==
                json::parse(R"({"factor": 0.01, "best": 0.5, "bad_evaluations": 3, "cooldown_left": 2})"));
  CATCH_REQUIRE(reread(state) == state);
  CATCH_REQUIRE(reread(PlateauState{}) == PlateauState{});
}

CATCH_TEST_CASE("the settings of loader, loss scale and precision are read back") {
  const DataLoaderOptions loader{
      .batch_size = 8, .shuffle = true, .seed = ~std::uint64_t{}, .workers = 2, .drop_last = true,
      .pin_memory = true, .even_batches = true, .split_batches = true};
  CATCH_REQUIRE(to_json(loader) ==
                json::parse(R"({"batch_size": 8, "shuffle": true, "seed": 18446744073709551615,
      "workers": 2, "drop_last": true, "pin_memory": true, "even_batches": true, "split_batches": true})"));
  CATCH_REQUIRE(reread(loader) == loader);
  const LossScalerOptions scaler{1024, 4, 0.25, 100};
  CATCH_REQUIRE(to_json(scaler) == json::parse(R"({"initial_scale": 1024.0, "growth_factor": 4.0,
      "backoff_factor": 0.25, "growth_interval": 100})"));
  CATCH_REQUIRE(reread(scaler) == scaler);
  using enum Precision;
  const Precision precision = GENERATE(fp32, fp64, bf16, fp16, bf16_mixed, fp16_mixed);
  CATCH_REQUIRE(reread(precision) == precision);
  CATCH_REQUIRE(to_json(bf16_mixed) == "bf16-mixed");
}

CATCH_TEST_CASE("a count outside its type's range is refused") {
  const auto [field, value] = GENERATE(table<const char*, json>(
      {{"seed", -1}, {"workers", 3000000000}, {"batch_size", json::parse("9223372036854775808")}}));
  json loader = to_json(DataLoaderOptions{});
  loader[field] = value;
  CATCH_REQUIRE(complaint<DataLoaderOptions>(loader).find("give an integer from ") != std::string::npos);
}

CATCH_TEST_CASE("an unknown field is refused with the known one that is nearest") {
  const auto [given, meant] =
      GENERATE(table<const char*, const char*>({{"epoch", "epochs"},
                                                {"max_step", "max_steps"},
                                                {"log-every", "log_every"},
                                                {"evaluate_evrey", "evaluate_every"},
                                                {"max_gradient_norm", "max_grad_norm"}}));
  json config = to_json(TrainConfig{.epochs = 1});
  config[given] = 1;
  CATCH_REQUIRE(complaint<TrainConfig>(config).find(std::string("did you mean \"") + meant + "\"?") !=
                std::string::npos);
}

CATCH_TEST_CASE("a TrainConfig is read back with all its parts") {
  const TrainConfig config{.epochs = 9,
                           .max_steps = 100,
                           .limit_train_batches = 0.5,
                           .log_every = 5,
                           .log_histograms_every = Interval{3, Interval::Unit::epoch},
                           .check_ranks_every = Interval{7, Interval::Unit::step},
                           .evaluate_every = Interval{50, Interval::Unit::step},
                           .evaluate_first = true,
                           .evaluate_raw = true,
                           .limit_evaluation_batches = 7,
                           .checkpoint_every = {},
                           .keep_checkpoints = 3,
                           .background_saves = false,
                           .skip_busy_saves = true,
                           .fail_on_save_error = true,
                           .max_grad_norm = 0.1,
                           .max_grad_value = 0.2,
                           .late_finite_check = true,
                           .monitor = Monitor("validation/accuracy", {Direction::maximize, 4, 0.5, 2}),
                           .restore_best = true,
                           .debug = true,
                           .overfit_one_batch = true};
  const json expected = json::parse(R"({"epochs": 9, "max_steps": 100, "log_every": 5,
      "evaluate_every": "50 steps", "checkpoint_every": null, "keep_checkpoints": 3, "background_saves": false,
      "skip_busy_saves": true, "fail_on_save_error": true,
      "max_grad_norm": 0.1, "max_grad_value": 0.2, "late_finite_check": true,
      "monitor": {"metric": "validation/accuracy", "direction": "maximize",
      "patience": 4,
      "min_delta": 0.5, "start_epoch": 2}, "limit_train_batches": 0.5, "log_histograms_every": "3 epochs",
      "check_ranks_every": "7 steps",
      "evaluate_first": true,
      "evaluate_raw": true, "limit_evaluation_batches": 7, "restore_best": true,
      "debug": true, "overfit_one_batch": true})");
  CATCH_REQUIRE(to_json(config) == expected);
  const TrainConfig again = read_json<TrainConfig>(expected);
  CATCH_REQUIRE(to_json(again) == expected);
  CATCH_REQUIRE(again.monitor == config.monitor);
  CATCH_REQUIRE(again.max_grad_norm == config.max_grad_norm);
  CATCH_REQUIRE_FALSE(again.checkpoint_every.has_value());
  CATCH_REQUIRE_FALSE(again.background_saves);
}

CATCH_TEST_CASE("an Interval is text, and a bare number counts steps") {
  CATCH_REQUIRE(to_json(Interval{1, Interval::Unit::epoch}) == "1 epoch");
  CATCH_REQUIRE(read_json<Interval>("2 epochs") == Interval{2, Interval::Unit::epoch});
  CATCH_REQUIRE(read_json<Interval>("500 step") == Interval{500, Interval::Unit::step});
  CATCH_REQUIRE(read_json<Interval>("30 seconds") == Interval{30, Interval::Unit::second});
  CATCH_REQUIRE(read_json<Interval>(50) == Interval{50, Interval::Unit::step});
  CATCH_REQUIRE(complaint<Interval>("2 days").find("\"2 days\"") != std::string::npos);
}

CATCH_TEST_CASE("doubles survive a round trip bit for bit") {
  using Limits = std::numeric_limits<double>;
  const double value =
      GENERATE(0.0, -0.0, 0.1, 1.0 / 3, 1e-3, 2.0, -123456789.123456789, 5e-324, Limits::min(), Limits::max(),
               Limits::lowest(), Limits::epsilon(), Limits::infinity(), -Limits::infinity(),
               0x1.921fb54442d18p+1, 9007199254740993.0);
  const double read = reread(state_with(value)).best_metric.value();
  CATCH_REQUIRE(std::bit_cast<std::uint64_t>(read) == std::bit_cast<std::uint64_t>(value));
}

CATCH_TEST_CASE("numbers that are not finite are written as strings") {
  using Limits = std::numeric_limits<double>;
  CATCH_REQUIRE(to_json(state_with(Limits::quiet_NaN()))["best_metric"] == "nan");
  CATCH_REQUIRE(to_json(state_with(-Limits::quiet_NaN()))["best_metric"] == "nan");
  CATCH_REQUIRE(to_json(state_with(Limits::infinity()))["best_metric"] == "inf");
  CATCH_REQUIRE(to_json(state_with(-Limits::infinity()))["best_metric"] == "-inf");
  CATCH_REQUIRE(std::isnan(reread(state_with(Limits::quiet_NaN())).best_metric.value()));
}

CATCH_TEST_CASE("a whole number is a double too, but a fraction is no count") {
  json scaler = to_json(LossScalerOptions{});
  scaler["initial_scale"] = 1;
  CATCH_REQUIRE(read_json<LossScalerOptions>(scaler).initial_scale == 1.0);
  scaler["growth_interval"] = 10.0;
  CATCH_REQUIRE(complaint<LossScalerOptions>(scaler).find("\"/growth_interval\" is 10.0") !=
                std::string::npos);
}

CATCH_TEST_CASE("a missing field is refused by its pointer") {
  json config = to_json(TrainConfig{.epochs = 1});
  config["monitor"] = to_json(Monitor("validation/loss"));
  config["monitor"].erase("min_delta");
  CATCH_REQUIRE(complaint<TrainConfig>(config).find("\"/monitor/min_delta\" is missing") !=
                std::string::npos);
}

CATCH_TEST_CASE("an unknown field is refused by its pointer, and the known ones are listed") {
  json state = to_json(TrainState{});
  state["a/b"] = 1;
  const std::string text = complaint<TrainState>(state);
  CATCH_REQUIRE(text.find("\"/a~1b\" is not known") != std::string::npos);
  CATCH_REQUIRE(text.find("epoch, next_batch, step") != std::string::npos);
}

CATCH_TEST_CASE("a value of the wrong type is refused by its pointer") {
  const auto [field, value] = GENERATE(table<const char*, json>({
      {"epochs", "3"},
      {"log_every", nullptr},
      {"epochs", true},
      {"restore_best", 1},
      {"limit_train_batches", "all"},
      {"epochs", json::parse("9223372036854775808")},
      {"max_grad_norm", "much"},
      {"max_grad_norm", json::array()},
      {"evaluate_every", 0},
      {"evaluate_every", 2.5},
      {"monitor", "validation/loss"},
  }));
  json config = to_json(TrainConfig{.epochs = 1});
  config[field] = value;
  CATCH_CAPTURE(field, value.dump());
  CATCH_REQUIRE(complaint<TrainConfig>(config).find("\"/" + std::string(field) + "\" is ") !=
                std::string::npos);
}

CATCH_TEST_CASE("an unknown word is refused with the words that are known") {
  json schedule = to_json<Schedule>(WarmupDecay{.total_steps = 10});
  schedule["warmup_decay"]["decay"] = "cosin";
  CATCH_REQUIRE(complaint<Schedule>(schedule).find(R"(one of ["cosine","linear","constant"])") !=
                std::string::npos);
}

CATCH_TEST_CASE("a pointer starts where the value stands in its document") {
  try {
    (void)read_json<TrainState>(json::object(), json::json_pointer("/state"));
    CATCH_FAIL("an empty object was read as a state");
  } catch (const ConfigError& error) {
    CATCH_REQUIRE(std::string(error.what()).find("\"/state/epoch\"") != std::string::npos);
  }
}
