#include "watch/jsonl_sink.hpp"

#include <cmath>
#include <ctime>
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
  std::vector<std::string> warnings;

  JsonlSink open() {
    return JsonlSink(path, [this](const std::string& text) { warnings.push_back(text); });
  }

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
  const double before = std::floor(static_cast<double>(std::time(nullptr)));
  fixture.open().write({.event = "train",
                        .step = 20,
                        .epoch = 1,
                        .samples = 2560,
                        .values = {{"train/loss", 0.1}, {"lr", 1e-3}},
                        .text = "a \"text\""});
  const std::string text = read_text(fixture.path);
  CATCH_REQUIRE(text.back() == '\n');
  CATCH_REQUIRE(fixture.lines().size() == 1);

  const auto time_at = text.find("\"time\":");
  CATCH_REQUIRE(text.substr(0, time_at) == R"({"event":"train","step":20,"epoch":1,"samples":2560,)");
  CATCH_REQUIRE(text.substr(text.find(",\"values\"")) ==
                R"(,"values":{"train/loss":0.1,"lr":0.001},"text":"a \"text\""})"
                "\n");
  const double time = nlohmann::json::parse(text)["time"];
  CATCH_REQUIRE(time >= before);
  CATCH_REQUIRE(time <= before + 60);
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

CATCH_TEST_CASE("a full disk is warned of once, and how much was lost is said at the end") {
  Fixture fixture;
  std::filesystem::create_symlink("/dev/full", fixture.path);
  JsonlSink sink = fixture.open();
  for (int i = 0; i < 3; ++i) sink.write({.event = "train"});
  CATCH_REQUIRE(fixture.warnings.size() == 1);
  CATCH_REQUIRE(fixture.warnings[0].find("No space left on device") != std::string::npos);
  sink.finish();
  CATCH_REQUIRE(fixture.warnings.size() == 2);
  CATCH_REQUIRE(fixture.warnings[1].find("lacks 3 events") != std::string::npos);
  sink.finish();
  CATCH_REQUIRE(fixture.warnings.size() == 2);
}

CATCH_TEST_CASE("a line cut short by a full disk does not merge with the next one") {
  Fixture fixture;
  JsonlSink sink = fixture.open();
  sink.write({.event = "start"});
  const std::size_t whole = read_text(fixture.path).size();
  {
    const FileSizeLimit limit(whole + 10);
    sink.write({.event = "train"});
  }
  CATCH_REQUIRE(read_text(fixture.path).size() == whole + 10);
  CATCH_REQUIRE(fixture.warnings.size() == 1);
  sink.write({.event = "end"});
  CATCH_REQUIRE(fixture.lines().size() == 3);
  CATCH_REQUIRE(nlohmann::json::parse(fixture.lines()[2])["event"] == "end");
}

CATCH_TEST_CASE("a file that cannot be opened is an error") {
  const TemporaryDirectory directory;
  CATCH_REQUIRE(thrown_id<FileError>([&] { JsonlSink(directory.path(), [](const std::string&) {}); }) ==
                "cannot-write-file");
}
