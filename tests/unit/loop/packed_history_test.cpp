#include "loop/packed_history.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("a history comes back from its bytes with every value, in the same order") {
  History history;
  history.add({.epoch = 1, .step = 3, .values = {{"z", 0.1}, {"a", -0.0}}});
  history.add({.epoch = 2, .step = 6, .values = {{"m", 1e-310}, {"a", INFINITY}}});
  history.add({.epoch = 3, .step = 9, .values = {{"z", NAN}}});
  const History again = unpacked(packed(history));
  CATCH_CHECK(again.names() == history.names());
  CATCH_CHECK(again.json() == history.json());
  CATCH_CHECK(again[1] == history[1]);
  CATCH_CHECK(std::signbit(*again[0].value("a")));
  CATCH_CHECK(unpacked(packed({})).empty());
}

CATCH_TEST_CASE("bytes that are no history are refused") {
  CATCH_CHECK_THROWS_AS(unpacked("no"), nlohmann::json::exception);
  const auto bytes = nlohmann::json::to_msgpack({{"names", {"a"}}, {"epochs", {{1, 1, {4, 0.5}}}}});
  CATCH_CHECK_THROWS_AS(unpacked({bytes.begin(), bytes.end()}), nlohmann::json::exception);
}

CATCH_TEST_CASE("a thousand epochs of ten values take ten kilobytes a value") {
  History history;
  for (int epoch = 1; epoch <= 1000; ++epoch) {
    EpochRecord record{.epoch = epoch, .step = epoch * 100};
    for (int i = 0; i < 10; ++i) record.values.emplace_back("value" + std::to_string(i), epoch + 0.1 * i);
    history.add(record);
  }
  CATCH_CHECK(packed(history).size() < 120'000);
}
