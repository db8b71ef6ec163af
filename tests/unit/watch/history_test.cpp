#include "lockstep/watch/history.hpp"

#include <limits>

#include "support/catch.hpp"

using namespace lockstep;
using Names = std::vector<std::string>;
using Points = std::vector<History::Point>;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

/// Three epochs of two updates; `b` is in the second and third alone.
History three_epochs() {
  History history;
  history.add({.epoch = 1, .step = 2, .values = {{"a", 3}}});
  history.add({.epoch = 2, .step = 4, .values = {{"a", 1}, {"b", not_a_number}}});
  history.add({.epoch = 3, .step = 6, .values = {{"a", 1}, {"b", infinity}}});
  return history;
}

}  // namespace

CATCH_TEST_CASE("a history is a range of records, each with its epoch, step and values") {
  const History history = three_epochs();
  std::vector<std::int64_t> steps;
  for (const auto& record : history) steps.push_back(record.step);
  CATCH_CHECK(steps == std::vector<std::int64_t>{2, 4, 6});
  CATCH_CHECK(history.size() == 3);
  CATCH_CHECK(history[1].epoch == 2);
  CATCH_CHECK(history[0].value("a") == 3);
  CATCH_CHECK(history[0].value("b") == std::nullopt);
  CATCH_CHECK(history.names() == Names{"a", "b"});
  CATCH_CHECK(history.back().step == 6);
  CATCH_CHECK(History().empty());
}

CATCH_TEST_CASE("a series has the epochs that have the value") {
  CATCH_CHECK(three_epochs().series("a") == Points{{1, 2, 3}, {2, 4, 1}, {3, 6, 1}});
  CATCH_CHECK(three_epochs().series("b").size() == 2);
  CATCH_CHECK(three_epochs().series("c").empty());
}

CATCH_TEST_CASE("the best value is the earliest best finite one") {
  const History history = three_epochs();
  CATCH_CHECK(history.best("a") == History::Point{2, 4, 1});
  CATCH_CHECK(history.best("a", Direction::maximize) == History::Point{1, 2, 3});
  CATCH_CHECK(history.best("b", Direction::maximize) == std::nullopt);
}

CATCH_TEST_CASE(
    "values are added to the latest epoch and replaced there, in the order of their first appearance") {
  History history = three_epochs();
  history.add({.epoch = 4, .step = 8, .values = {{"b", 5}}});
  history.extend({{"c", 7}, {"a", 6}, {"b", 4}});
  CATCH_CHECK(history.names() == Names{"a", "b", "c"});
  CATCH_CHECK(history.back().values ==
              std::vector<std::pair<std::string, double>>{{"a", 6}, {"b", 4}, {"c", 7}});
}

CATCH_TEST_CASE("a history as JSON has one object an epoch, with names for what is not finite") {
  CATCH_CHECK(History().json() == "[]");
  History history;
  history.add({.epoch = 1, .step = 2, .values = {{"z", 0.1}, {"a", not_a_number}}});
  history.add({.epoch = 2, .step = 4, .values = {{"a", -infinity}}});
  CATCH_CHECK(history.json() == R"([{"epoch":1,"step":2,"values":{"z":0.1,"a":"nan"}},)"
                                R"({"epoch":2,"step":4,"values":{"a":"-inf"}}])");
}
