#include "watch/event_file.hpp"

#include "support/catch.hpp"

using namespace lockstep;

namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    for (const int shift : {4, 0}) text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> shift & 15];
  }
  return text;
}

const LogEvent half_at_7 = {.event = "train", .step = 7, .values = {{"train/loss", 0.5}}, .time = 1.0};

}  // namespace

CATCH_TEST_CASE("a value has the bytes that the format prescribes") {
  CATCH_CHECK(hex(event_record(half_at_7)) ==
              "200000000000000029eda95009000000000000f03f10072a130a110a0a"
              "747261696e2f6c6f7373150000003fb0409f72");
}

CATCH_TEST_CASE("a file's first record names the version that viewers look for") {
  const std::string record = version_record(1.0);
  // Wall time, then field 3 with 13 characters.
  CATCH_CHECK(hex(record.substr(12, 11)) == "09000000000000f03f1a0d");
  CATCH_CHECK(record.substr(23, 13) == "brain.Event:2");
  CATCH_CHECK(record.size() == 12 + 9 + 2 + 13 + 4);
}

CATCH_TEST_CASE("a record says its step and its tags") {
  const std::string bytes = event_record({.event = "train",
                                          .step = 300,
                                          .values = {{"a", 1}, {"b", 2}},
                                          .histograms = {{.name = "h"}}}) +
                            "more";
  const auto record = read_record(bytes);
  CATCH_REQUIRE(record);
  CATCH_CHECK(record->step == 300);
  CATCH_CHECK(record->tags == std::vector<std::string>{"a", "b", "h"});
  CATCH_CHECK(record->bytes.size() == bytes.size() - 4);

  const auto text = read_record(text_record(1, 5, "config", "{}"));
  CATCH_REQUIRE(text);
  CATCH_CHECK(text->step == 5);
  CATCH_CHECK(text->tags == std::vector<std::string>{"config"});
  CATCH_CHECK(read_record(version_record(1))->tags.empty());
}

CATCH_TEST_CASE("a record that is torn, or has a wrong bit, is none") {
  const std::string whole = event_record(half_at_7);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    CATCH_CHECK_FALSE(read_record(whole.substr(0, size)));
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    CATCH_CHECK_FALSE(read_record(damaged));
  }
}

CATCH_TEST_CASE("of empty buckets at a histogram's ends only the one below the first value stays") {
  const Histogram wide = {.name = "h", .bucket_limits = {-2, -1, 0, 1, 2, 3}, .counts = {0, 0, 4, 0, 5, 0}};
  const Histogram narrow = {.name = "h", .bucket_limits = {-1, 0, 1, 2}, .counts = {0, 4, 0, 5}};
  CATCH_CHECK(event_record({.event = "train", .histograms = {wide}}) ==
              event_record({.event = "train", .histograms = {narrow}}));
}
