#include "lockstep/config/schedule.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

#include "config/json.hpp"
#include "support/catch.hpp"

using namespace lockstep;
using nlohmann::json;

namespace {

/// What record_schedules.py wrote.
const json& recorded() {
  static const json record = json::parse(std::ifstream(REFERENCE_DIR "/schedules.json"));
  return record;
}

}  // namespace

// The absolute part is for Torch's cosines, which it multiplies up from one update to the next: near a
// minimum of 0 what is left of such a product is its rounding.
CATCH_TEST_CASE("every schedule follows Torch's own scheduler at every count") {
  CATCH_REQUIRE(recorded().at("factors").size() == 16);
  for (const json& test : recorded().at("factors")) {
    CATCH_CAPTURE(test.at("name").get<std::string>());
    const auto schedule = read_json<Schedule>(test.at("schedule"));
    CATCH_REQUIRE(problems(schedule).empty());
    std::int64_t completed = 0;
    for (const double expected : test.at("factors")) {
      CATCH_CAPTURE(completed, expected);
      CATCH_REQUIRE(std::abs(schedule.factor(completed) - expected) <= 1e-12 * expected + 1e-15);
      ++completed;
    }
  }
}

CATCH_TEST_CASE("a plateau takes Torch's course, value by value") {
  CATCH_REQUIRE(recorded().at("plateaus").size() == 4);
  for (const json& test : recorded().at("plateaus")) {
    const auto schedule = read_json<Schedule>(test.at("schedule"));
    CATCH_REQUIRE(problems(schedule).empty());
    PlateauState state;
    for (const json& step : test.at("steps")) {
      const json& value = step.at("value");
      state = schedule.plateau()->observe(value.is_string() ? std::nan("") : value.get<double>(), state);
      CATCH_CAPTURE(test.at("schedule").dump(), step.dump());
      CATCH_REQUIRE(std::abs(state.factor - step.at("factor").get<double>()) <= 1e-12 * state.factor);
      CATCH_REQUIRE(state.best == step.at("best").get<double>());
      CATCH_REQUIRE(state.bad_evaluations == step.at("bad_evaluations"));
      CATCH_REQUIRE(state.cooldown_left == step.at("cooldown_left"));
    }
  }
}

CATCH_TEST_CASE("each part of a sequence counts from its own start") {
  const Schedule schedule =
      SequentialSchedule{{ExponentialDecay{0.5}, MultiStepDecay{{2}, 0.25},
                          LambdaSchedule{"count", [](std::int64_t t) { return static_cast<double>(t); }}},
                         {2, 5}};
  const std::vector<double> expected = {1, 0.5, 1, 1, 0.25, 0, 1, 2};
  for (std::size_t t = 0; t < expected.size(); ++t) {
    CATCH_REQUIRE(schedule.factor(static_cast<std::int64_t>(t)) == expected[t]);
  }
}

CATCH_TEST_CASE("a schedule is made from each kind, and knows which it is") {
  CATCH_REQUIRE(Schedule(WarmupDecay{}).kind() == "warmup_decay");
  CATCH_REQUIRE(Schedule(MultiStepDecay{}).kind() == "multi_step_decay");
  CATCH_REQUIRE(Schedule(ExponentialDecay{}).kind() == "exponential_decay");
  CATCH_REQUIRE(Schedule(PolynomialDecay{}).kind() == "polynomial_decay");
  CATCH_REQUIRE(Schedule(InverseSqrtDecay{}).kind() == "inverse_sqrt_decay");
  CATCH_REQUIRE(Schedule(CosineRestarts{}).kind() == "cosine_restarts");
  CATCH_REQUIRE(Schedule(OneCycle{}).kind() == "one_cycle");
  CATCH_REQUIRE(Schedule(WarmupStableDecay{}).kind() == "warmup_stable_decay");
  CATCH_REQUIRE(Schedule(SequentialSchedule{}).kind() == "sequential");
  CATCH_REQUIRE(Schedule(LambdaSchedule{}).kind() == "lambda");
  CATCH_REQUIRE(Schedule(Plateau{}).kind() == "plateau");
}

CATCH_TEST_CASE("only a plateau is handed out as one") {
  const Schedule plateau = Plateau{.metric = "validation/accuracy"};
  CATCH_REQUIRE(plateau.plateau() != nullptr);
  CATCH_REQUIRE(plateau.plateau()->metric == "validation/accuracy");
  CATCH_REQUIRE(Schedule(OneCycle{}).plateau() == nullptr);
}

CATCH_TEST_CASE("schedules are equal by kind and fields, functions by their name") {
  CATCH_REQUIRE(Schedule(ExponentialDecay{0.5}) == Schedule(ExponentialDecay{0.5}));
  CATCH_REQUIRE_FALSE(Schedule(ExponentialDecay{0.5}) == Schedule(ExponentialDecay{0.25}));
  CATCH_REQUIRE_FALSE(Schedule(ExponentialDecay{}) == Schedule(OneCycle{}));
  const LambdaSchedule one{"one", [](std::int64_t) { return 1.0; }};
  CATCH_REQUIRE(Schedule(one) == Schedule(LambdaSchedule{"one"}));
  CATCH_REQUIRE_FALSE(Schedule(one) == Schedule(LambdaSchedule{"two", one.function}));
  const SequentialSchedule sequence{{ExponentialDecay{0.5}, one}, {3}};
  SequentialSchedule later = sequence;
  CATCH_REQUIRE(Schedule(sequence) == Schedule(later));
  later.milestones = {4};
  CATCH_REQUIRE_FALSE(Schedule(sequence) == Schedule(later));
}

CATCH_TEST_CASE("the mistakes of a sequence and of its parts are named") {
  const ExponentialDecay sound{0.5};
  const auto only = [](const Schedule& schedule, const std::string& beginning) {
    const auto found = problems(schedule);
    return found.size() == 1 && found.front().rfind(beginning, 0) == 0;
  };
  CATCH_REQUIRE(problems(Schedule(SequentialSchedule{{sound, sound}, {1}})).empty());
  CATCH_REQUIRE(only(SequentialSchedule{{sound}, {}}, "SequentialSchedule.parts has 1 "));
  CATCH_REQUIRE(
      only(SequentialSchedule{{sound, sound}, {}}, "SequentialSchedule.milestones has 0 counts for 2"));
  CATCH_REQUIRE(
      only(SequentialSchedule{{sound, sound}, {0}}, "SequentialSchedule.milestones is out of order"));
  CATCH_REQUIRE(
      only(SequentialSchedule{{sound, Plateau{}}, {1}}, "SequentialSchedule.parts[1] is a Plateau"));
  CATCH_REQUIRE(only(SequentialSchedule{{ExponentialDecay{}, sound}, {1}},
                     "SequentialSchedule.parts[0]: ExponentialDecay.gamma is 0"));
}

CATCH_TEST_CASE("a function needs a name and must be there") {
  CATCH_REQUIRE(problems(LambdaSchedule{"one", [](std::int64_t) { return 1.0; }}).empty());
  CATCH_REQUIRE(problems(LambdaSchedule{}).size() == 2);
}
