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

CATCH_TEST_CASE("a WarmupDecay is written with its named fields") {
  const WarmupDecay schedule{100, 10, 0.5, 0.25, WarmupDecay::Decay::linear};
  CATCH_REQUIRE(to_json(schedule) ==
                json::parse(R"({"total_steps": 100, "warmup_steps": 10, "start_factor": 0.5,
      "minimum_factor": 0.25, "decay": "linear"})"));
  CATCH_REQUIRE(reread(schedule) == schedule);
}

CATCH_TEST_CASE("a TrainConfig is read back with all its parts") {
  const TrainConfig config{.epochs = 9,
                           .max_steps = 100,
                           .limit_train_batches = 0.5,
                           .log_every = 5,
                           .evaluate_every = Interval{50, Interval::Unit::step},
                           .evaluate_first = true,
                           .evaluate_raw = true,
                           .limit_evaluation_batches = 7,
                           .checkpoint_every = {},
                           .keep_checkpoints = 3,
                           .max_grad_norm = 0.1,
                           .monitor = Monitor("validation/accuracy", {Direction::maximize, 4, 0.5, 2}),
                           .restore_best = true};
  const json expected = json::parse(R"({"epochs": 9, "max_steps": 100, "log_every": 5,
      "evaluate_every": {"every": 50, "unit": "step"}, "checkpoint_every": null, "keep_checkpoints": 3,
      "max_grad_norm": 0.1, "monitor": {"metric": "validation/accuracy", "direction": "maximize",
      "patience": 4,
      "min_delta": 0.5, "start_epoch": 2}, "limit_train_batches": 0.5, "evaluate_first": true,
      "evaluate_raw": true, "limit_evaluation_batches": 7, "restore_best": true})");
  CATCH_REQUIRE(to_json(config) == expected);
  const TrainConfig again = read_json<TrainConfig>(expected);
  CATCH_REQUIRE(to_json(again) == expected);
  CATCH_REQUIRE(again.monitor == config.monitor);
  CATCH_REQUIRE(again.max_grad_norm == config.max_grad_norm);
  CATCH_REQUIRE_FALSE(again.checkpoint_every.has_value());
}

CATCH_TEST_CASE("an Interval may be given as text") {
  CATCH_REQUIRE(read_json<Interval>("2 epochs") == Interval{2, Interval::Unit::epoch});
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
  json schedule = to_json(WarmupDecay{.total_steps = 10});
  schedule["start_factor"] = 1;
  CATCH_REQUIRE(read_json<WarmupDecay>(schedule).start_factor == 1.0);
  schedule["total_steps"] = 10.0;
  CATCH_REQUIRE(complaint<WarmupDecay>(schedule).find("\"/total_steps\" is 10.0") != std::string::npos);
}

CATCH_TEST_CASE("a missing field is refused by its pointer") {
  json config = to_json(TrainConfig{.epochs = 1});
  config["evaluate_every"].erase("unit");
  CATCH_REQUIRE(complaint<TrainConfig>(config).find("\"/evaluate_every/unit\" is missing") !=
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
      {"evaluate_every", 5},
      {"monitor", "validation/loss"},
  }));
  json config = to_json(TrainConfig{.epochs = 1});
  config[field] = value;
  CATCH_CAPTURE(field, value.dump());
  CATCH_REQUIRE(complaint<TrainConfig>(config).find("\"/" + std::string(field) + "\" is ") !=
                std::string::npos);
}

CATCH_TEST_CASE("an unknown word is refused with the words that are known") {
  json schedule = to_json(WarmupDecay{.total_steps = 10});
  schedule["decay"] = "cosin";
  CATCH_REQUIRE(complaint<WarmupDecay>(schedule).find(R"(one of ["cosine","linear","constant"])") !=
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
