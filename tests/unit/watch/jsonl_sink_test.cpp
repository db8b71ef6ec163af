#include "watch/jsonl_sink.hpp"

#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/temporary_directory.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct Fixture {
  TemporaryDirectory directory;
  std::filesystem::path path = directory.path() / "metrics.jsonl";

  JsonlSink open() const { return JsonlSink(path); }

  std::vector<std::string> lines() const {
    std::istringstream text(read_text(path));
    std::vector<std::string> all;
    for (std::string line; std::getline(text, line);) all.push_back(line);
    return all;
  }
};

}  // namespace

CATCH_TEST_CASE("an event is one line of JSON with its fields in a fixed order") {
  Fixture fixture;
  fixture.open().write({.event = "train",
                        .step = 20,
                        .epoch = 1,
                        .samples = 2560,
                        .values = {{"train/loss", 0.1}, {"lr", 1e-3}},
                        .text = "a \"text\"",
                        .time = 1764449000.125});
  CATCH_REQUIRE(read_text(fixture.path) ==
                R"({"event":"train","step":20,"epoch":1,"samples":2560,"time":1764449000.125,)"
                R"("values":{"train/loss":0.1,"lr":0.001},"text":"a \"text\""})"
                "\n");
}

CATCH_TEST_CASE("values that are not finite are strings") {
  using Limits = std::numeric_limits<double>;
  Fixture fixture;
  fixture.open().write(
      {.event = "train",
       .values = {{"a", Limits::quiet_NaN()}, {"b", Limits::infinity()}, {"c", -Limits::infinity()}}});
  CATCH_REQUIRE(fixture.lines().at(0).find(R"("values":{"a":"nan","b":"inf","c":"-inf"})") !=
                std::string::npos);
}

CATCH_TEST_CASE("bytes that are no UTF-8 do not lose the event") {
  Fixture fixture;
  fixture.open().write({.event = "error", .text = "\xff path"});
  CATCH_REQUIRE(nlohmann::json::parse(fixture.lines().at(0))["text"] == "\xEF\xBF\xBD path");
}

CATCH_TEST_CASE("lines are appended to those of an earlier run") {
  Fixture fixture;
  fixture.open().write({.event = "start"});
  fixture.open().write({.event = "resume"});
  CATCH_REQUIRE(fixture.lines().size() == 2);
  CATCH_REQUIRE(nlohmann::json::parse(fixture.lines()[0])["event"] == "start");
  CATCH_REQUIRE(nlohmann::json::parse(fixture.lines()[1])["event"] == "resume");
}

CATCH_TEST_CASE("a line torn by a crash does not merge with the next one") {
  Fixture fixture;
  write_text(fixture.path, "{\"event\":\"start\"}\n{\"event\":\"tra");
  fixture.open().write({.event = "resume"});
  CATCH_REQUIRE(fixture.lines().size() == 3);
  CATCH_REQUIRE(fixture.lines()[1] == "{\"event\":\"tra");
  CATCH_REQUIRE(nlohmann::json::parse(fixture.lines()[2])["event"] == "resume");
}

CATCH_TEST_CASE("a full disk is an error for each event") {
  Fixture fixture;
  std::filesystem::create_symlink("/dev/full", fixture.path);
  JsonlSink sink = fixture.open();
  for (int i = 0; i < 2; ++i) {
    CATCH_REQUIRE(thrown_id<FileError>([&] { sink.write({.event = "train"}); }) == "cannot-write-file");
  }
}

CATCH_TEST_CASE("an event that a full disk takes a part of leaves no trace") {
  Fixture fixture;
  JsonlSink sink = fixture.open();
  sink.write({.event = "start"});
  const std::string whole = read_text(fixture.path);
  {
    const FileSizeLimit limit(whole.size() + 10);
    CATCH_REQUIRE(thrown_id<FileError>([&] { sink.write({.event = "train"}); }) == "cannot-write-file");
  }
  CATCH_REQUIRE(read_text(fixture.path) == whole);
  sink.write({.event = "end"});
  CATCH_REQUIRE(fixture.lines().size() == 2);
  CATCH_REQUIRE(nlohmann::json::parse(fixture.lines()[1])["event"] == "end");
}

CATCH_TEST_CASE("a file that cannot be opened is an error") {
  const TemporaryDirectory directory;
  CATCH_REQUIRE(thrown_id<FileError>([&] { const JsonlSink sink(directory.path()); }) ==
                "cannot-write-file");
}
