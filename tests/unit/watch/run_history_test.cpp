#include "lockstep/watch/run_history.hpp"

#include <cmath>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/temporary_directory.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

std::string line(const std::string& event, int step, int samples, const std::string& values = "") {
  return R"({"event":")" + event + R"(","step":)" + std::to_string(step) +
         R"(,"epoch":0,"samples":)" + std::to_string(samples) + R"(,"time":)" + std::to_string(samples) +
         R"(.5,"values":{)" + values + R"(},"text":""})" + "\n";
}

struct Fixture {
  TemporaryDirectory directory;
  std::filesystem::path metrics = directory.path() / "metrics.jsonl";
  std::filesystem::path csv = directory.path() / "metrics.csv";

  /// (event, step) in order.
  std::vector<std::pair<std::string, std::int64_t>> read(const std::string& text) const {
    write_text(metrics, text);
    std::vector<std::pair<std::string, std::int64_t>> result;
    for (const auto& event : read_run_history(metrics)) result.emplace_back(event.event, event.step);
    return result;
  }
  std::string export_of(const std::string& text) const {
    write_text(metrics, text);
    export_csv(metrics, csv);
    return read_text(csv);
  }
};

using Events = std::vector<std::pair<std::string, std::int64_t>>;

}  // namespace

CATCH_TEST_CASE("an event is read with every field") {
  const Fixture fixture;
  write_text(fixture.metrics,
             R"({"event":"train","step":20,"epoch":1,"samples":2560,"time":5.25,)"
             R"("values":{"b":0.1,"a":"nan","c":"-inf"},"text":"x"})");
  const auto events = read_run_history(fixture.metrics);
  CATCH_REQUIRE(events.size() == 1);
  CATCH_CHECK(events[0].event == "train");
  CATCH_CHECK(events[0].step == 20);
  CATCH_CHECK(events[0].epoch == 1);
  CATCH_CHECK(events[0].samples == 2560);
  CATCH_CHECK(events[0].time == 5.25);
  CATCH_CHECK(events[0].text == "x");
  CATCH_REQUIRE(events[0].values.size() == 3);
  CATCH_CHECK(events[0].values[0] == std::pair<std::string, double>{"b", 0.1});
  CATCH_CHECK(std::isnan(events[0].values[1].second));
  CATCH_CHECK(events[0].values[2].second == -INFINITY);
}

CATCH_TEST_CASE("a resume supersedes what is made again after it") {
  const Fixture fixture;
  const std::string first = line("start", 0, 0) + line("train", 1, 10) + line("train", 2, 20) +
                            line("skip", 2, 30) + line("train", 3, 40);
  CATCH_CHECK(fixture.read(first + line("resume", 2, 20) + line("train", 3, 30)) ==
              Events{{"start", 0}, {"train", 1}, {"train", 2}, {"resume", 2}, {"train", 3}});
  CATCH_CHECK(fixture.read(first + line("resume", 2, 30)) ==
              Events{{"start", 0}, {"train", 1}, {"train", 2}, {"skip", 2}, {"resume", 2}});
  CATCH_CHECK(fixture.read(first + line("resume", 3, 40)).size() == 6);
  CATCH_CHECK(fixture.read(first + line("resume", 2, 20) + line("resume", 1, 10)) ==
              Events{{"start", 0}, {"train", 1}, {"resume", 1}});
}

CATCH_TEST_CASE("a start supersedes all that was before it") {
  const Fixture fixture;
  CATCH_CHECK(fixture.read(line("start", 0, 0) + line("train", 1, 10) + line("start", 0, 0)) ==
              Events{{"start", 0}});
}

CATCH_TEST_CASE("lines that are no events are passed over") {
  const Fixture fixture;
  CATCH_CHECK(fixture.read("{\"event\":\"tra\n\n[]\n7\n{\"event\":\"train\",\"step\":\"1\"}\n" +
                           line("train", 1, 10) + R"({"event":"train","st)") == Events{{"train", 1}});
  CATCH_CHECK(fixture.read("").empty());
}

CATCH_TEST_CASE("a run without a log is an error") {
  const Fixture fixture;
  CATCH_CHECK(thrown_id<FileError>([&] { (void)read_run_history(fixture.metrics); }) == "cannot-read-file");
}

CATCH_TEST_CASE("a table has a row for each step and a column for each value, late ones included") {
  const Fixture fixture;
  CATCH_CHECK(fixture.export_of(line("start", 0, 0) + line("train", 1, 10, R"("loss":0.1,"lr":1e-05)") +
                                line("train", 2, 20, R"("loss":"inf","lr":0.25)") +
                                line("evaluate", 2, 20, R"("validation/loss":3)") +
                                line("checkpoint", 2, 20) + line("train", 10, 30, R"("a \"b\", c":1)")) ==
              "step,epoch,samples,time,loss,lr,validation/loss,\"a \"\"b\"\", c\"\n"
              "1,0,10,10.5,0.1,1e-05,,\n"
              "2,0,20,20.5,inf,0.25,3,\n"
              "10,0,30,30.5,,,,1\n");
}

CATCH_TEST_CASE("a table leaves superseded events out, and replaces an older table") {
  const Fixture fixture;
  write_text(fixture.csv, "old");
  CATCH_CHECK(fixture.export_of(line("start", 0, 0) + line("train", 1, 10, R"("loss":1)") +
                                line("train", 2, 20, R"("loss":2,"gone":1)") + line("resume", 1, 10) +
                                line("train", 2, 20, R"("loss":3)")) ==
              "step,epoch,samples,time,loss\n1,0,10,10.5,1\n2,0,20,20.5,3\n");
}
