#include "watch/tensorboard_sink.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/watch/run_logger.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/file_text.hpp"
#include "support/python.hpp"
#include "support/temporary_directory.hpp"
#include "support/throws.hpp"
#include "watch/event_file.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

namespace fs = std::filesystem;

/// (step, first tag) of every summary in the folder's event files, in the order in which viewers read them.
using Entries = std::vector<std::pair<std::int64_t, std::string>>;

std::vector<fs::path> event_files(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().find("tfevents") != std::string::npos) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

Entries entries(const fs::path& directory) {
  Entries result;
  for (const auto& file : event_files(directory)) {
    const std::string bytes = read_text(file);
    for (std::string_view rest = bytes; const auto record = read_record(rest);) {
      rest.remove_prefix(record->bytes.size());
      if (!record->tags.empty()) result.emplace_back(record->step, record->tags.front());
    }
  }
  return result;
}

struct Fixture {
  TemporaryDirectory temporary;
  RunDirectory directory{temporary.path()};

  Entries entries() const { return ::entries(directory.path()); }
};

LogEvent loss_at(std::int64_t step) {
  return {.event = "train", .step = step, .values = {{"loss", 1.0}}, .time = 1};
}

RunStart start_at(std::int64_t step) { return {.plan = {.first_step = step}}; }

/// Updates first_step + 1 to last_step of a run, with an evaluation after each fourth.
void train(const fs::path& run_dir, std::int64_t first_step, std::int64_t last_step) {
  RunLogger logger(run_dir, {.quiet = true, .record_git = false});
  logger.begin({.plan = {.first_step = first_step}, .config = "{\n  \"epochs\": 3\n}"});
  logger.log({.event = first_step == 0 ? "start" : "resume", .step = first_step, .samples = 10 * first_step});
  for (std::int64_t step = first_step + 1; step <= last_step; ++step) {
    logger.log({.event = "train",
                .step = step,
                .samples = 10 * step,
                .values = {{"train/loss", 1 / static_cast<double>(step)}, {"lr", 1e-3 * std::sin(step)}}});
    if (step % 4 != 0) continue;
    logger.log({.event = "evaluate",
                .step = step,
                .samples = 10 * step,
                .values = {{"validation/loss", 0.1 * static_cast<double>(step)},
                           {"validation/nothing", std::numeric_limits<double>::quiet_NaN()}}});
  }
}

void train_and_get_killed(const fs::path& run_dir, std::int64_t first_step, std::int64_t last_step) {
  const pid_t child = ::fork();
  if (child == 0) {
    struct Kill : Sink {
      std::int64_t at = 0;
      void write(const LogEvent& event) override {
        if (event.step == at) ::raise(SIGKILL);
      }
    };
    RunLogger logger(run_dir, {.quiet = true, .record_git = false});
    auto kill = std::make_shared<Kill>();
    kill->at = last_step;
    logger.add_sink(kill);
    logger.begin({.plan = {.first_step = first_step}});
    logger.log({.event = first_step == 0 ? "start" : "resume", .step = first_step});
    for (std::int64_t step = first_step + 1;; ++step)
      logger.log({.event = "train", .step = step, .values = {{"train/loss", 7}, {"killed", 8}}});
  }
  int status = 0;
  CATCH_REQUIRE(::waitpid(child, &status, 0) == child);
  CATCH_REQUIRE(WIFSIGNALED(status));
}

}  // namespace

CATCH_TEST_CASE("TensorBoard reads every tag, step and value of a run (LOCKSTEP_TEST_PYTHON)") {
  const TemporaryDirectory directory;
  train(directory.path(), 0, 20);
  run_python("tensorboard_check.py", "'" + directory.path().string() + "' > '" +
                                         (directory.path() / "read.json").string() + "'");
  const auto read = nlohmann::json::parse(read_text(directory.path() / "read.json"));
  CATCH_CHECK(read["scalars"] == 2 * 20 + 2 * 5);
  CATCH_CHECK(read["config"] == "    {\n      \"epochs\": 3\n    }");
}

CATCH_TEST_CASE("TensorBoard reads the newest history of a run that was killed (LOCKSTEP_TEST_PYTHON)") {
  const TemporaryDirectory directory;
  const auto check = [&](int scalars) {
    run_python("tensorboard_check.py", "'" + directory.path().string() + "' > '" +
                                           (directory.path() / "read.json").string() + "'");
    CATCH_CHECK(nlohmann::json::parse(read_text(directory.path() / "read.json"))["scalars"] == scalars);
  };
  train_and_get_killed(directory.path(), 0, 5);
  train(directory.path(), 0, 9);  // nothing was saved: from the start again
  train_and_get_killed(directory.path(), 8, 15);
  std::ofstream(event_files(directory.path()).back(), std::ios::app) << "torn";
  train(directory.path(), 12, 20);
  // Two a step and two an evaluation: to step 8 of the second process, to 12 of the third, then of the last.
  check((8 * 2 + 2 * 2) + 4 * 2 + (8 * 2 + 2 * 2));
}

CATCH_TEST_CASE("TensorBoard reads a histogram (LOCKSTEP_TEST_PYTHON)") {
  const TemporaryDirectory directory;
  {
    RunLogger logger(directory.path(), {.quiet = true, .record_git = false});
    logger.begin({});
    logger.log({.event = "train",
                .step = 3,
                .histograms = {{.name = "weight",
                                .min = -1,
                                .max = 2,
                                .num = 3,
                                .sum = 1.5,
                                .sum_squares = 5.25,
                                .bucket_limits = {-1, 0, 1, 3},
                                .counts = {0, 1, 1, 1}}}});
  }
  run_python("tensorboard_check.py", "'" + directory.path().string() + "' > '" +
                                         (directory.path() / "read.json").string() + "'");
  const auto read = nlohmann::json::parse(read_text(directory.path() / "read.json"));
  CATCH_CHECK(read["histograms"].dump() ==
              R"({"weight":[[3,-1.0,2.0,3.0,1.5,5.25,[-1.0,0.0,1.0,3.0],[0.0,1.0,1.0,1.0]]]})");
}

CATCH_TEST_CASE("a call that begins takes back the steps that are made again") {
  Fixture fixture;
  {
    TensorboardSink sink(fixture.directory);
    sink.begin(start_at(0));
    for (const std::int64_t step : {10, 20, 30}) sink.write(loss_at(step));
  }
  const auto other = fixture.directory.path() / "events.out.tfevents.1700000000.other";
  write_text(other, event_record(loss_at(99)));

  CATCH_SECTION("after the step where it goes on") {
    TensorboardSink(fixture.directory).begin(start_at(20));
    CATCH_CHECK(fixture.entries() ==
                Entries{{99, "loss"}, {0, "config"}, {10, "loss"}, {20, "loss"}, {20, "config"}});
  }
  CATCH_SECTION("all of them where it starts anew") {
    TensorboardSink(fixture.directory).begin(start_at(0));
    CATCH_CHECK(fixture.entries() == Entries{{99, "loss"}, {0, "config"}});
  }
  CATCH_SECTION("nothing where nothing was lost, and the files stay as they are") {
    const auto file = event_files(fixture.directory.path()).back();
    const auto before = fs::last_write_time(file);
    TensorboardSink(fixture.directory).begin(start_at(30));
    CATCH_CHECK(fs::last_write_time(file) == before);
    CATCH_CHECK(fixture.entries().size() == 1 + 1 + 3 + 1);
  }
  CATCH_CHECK(read_text(other) == event_record(loss_at(99)));
}

CATCH_TEST_CASE("files are in the order of the processes, within a second too") {
  Fixture fixture;
  for (const std::int64_t step : {1, 2, 3, 4}) {
    TensorboardSink sink(fixture.directory);
    sink.begin(start_at(step));
    sink.write(loss_at(step + 1));
  }
  CATCH_CHECK(event_files(fixture.directory.path()).size() == 4);
  CATCH_CHECK(fixture.entries() == Entries{{1, "config"},
                                           {2, "loss"},
                                           {2, "config"},
                                           {3, "loss"},
                                           {3, "config"},
                                           {4, "loss"},
                                           {4, "config"},
                                           {5, "loss"}});
}

CATCH_TEST_CASE("calls of one process share a file, unless one goes back") {
  Fixture fixture;
  TensorboardSink sink(fixture.directory);
  sink.begin(start_at(0));
  sink.write(loss_at(1));
  sink.begin(start_at(1));
  sink.write(loss_at(2));
  CATCH_CHECK(event_files(fixture.directory.path()).size() == 1);
  sink.begin(start_at(1));
  sink.write(loss_at(2));
  CATCH_CHECK(fixture.entries() == Entries{{0, "config"}, {1, "loss"}, {1, "config"}, {2, "loss"}});
}

CATCH_TEST_CASE("a step that a tag already has is left out, and the event's other tags are not") {
  Fixture fixture;
  TensorboardSink sink(fixture.directory);
  sink.begin(start_at(0));
  sink.write(loss_at(1));
  sink.write(loss_at(1));
  sink.write({.event = "train", .step = 1, .values = {{"loss", 2}, {"other", 3}}, .time = 1});
  sink.write({.event = "checkpoint", .step = 1});
  CATCH_CHECK(fixture.entries() == Entries{{0, "config"}, {1, "loss"}, {1, "other"}});
}

CATCH_TEST_CASE("a record that a full disk takes a part of leaves no trace in the event file") {
  Fixture fixture;
  TensorboardSink sink(fixture.directory);
  sink.begin(start_at(0));
  const auto file = event_files(fixture.directory.path()).at(0);
  {
    const FileSizeLimit limit(fs::file_size(file) + 10);
    CATCH_CHECK(thrown_id<FileError>([&] { sink.write(loss_at(1)); }) == "cannot-write-file");
  }
  sink.write(loss_at(1));
  sink.write(loss_at(2));
  CATCH_CHECK(fixture.entries() == Entries{{0, "config"}, {1, "loss"}, {2, "loss"}});
}
