// A run of 60 updates, killed with SIGKILL at every one of its 180 microbatches and resumed by another
// process.
#include <fcntl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>

#include "files/checkpoint.hpp"
#include "invariants/cases.hpp"
#include "support/file_text.hpp"

namespace lockstep::test {
namespace {

namespace fs = std::filesystem;

/// Layers that two threads share: their operations are large enough to be split.
struct WideRun : Mlp {
  CaseSettings settings() const {
    auto settings = Mlp::settings();
    settings.loader.batch_size = 96;
    return settings;
  }
  std::shared_ptr<Perceptron> model() const { return std::make_shared<Perceptron>(64, 1024, true); }
  NoisyPoints train_set() const { return {96 * 10 + 50, {64}}; }
  NoisyPoints validation_set() const { return {30, {64}}; }
};

/// Appends every event to a file at once, so that a killed process leaves what it logged.
class FileSink : public Sink {
 public:
  explicit FileSink(const fs::path& path)
      : file_(::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT, 0600)) {}
  ~FileSink() override { ::close(file_); }
  FileSink(const FileSink&) = delete;
  FileSink& operator=(const FileSink&) = delete;

  void write(const LogEvent& event) override {
    std::ostringstream line;
    line << event.event << " step " << event.step << " epoch " << event.epoch << " samples " << event.samples;
    for (const auto& [name, value] : event.values) {
      if (!is_measurement(name)) line << ' ' << name << ' ' << testing::text_of(value);
    }
    const auto text = line.str() + "\n";
    if (::write(file_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
  }

 private:
  int file_;
};

/// Every bit that the run left, a line for each thing.
std::string description(const testing::Record& record) {
  std::ostringstream text;
  const auto& state = record.state;
  text << "step " << state.step << " epoch " << state.epoch << " next_batch " << state.next_batch
       << " batches " << state.batches << " samples " << state.samples << " best "
       << testing::text_of(state.best_metric.value_or(std::nan(""))) << " at " << state.best_step.value_or(-1)
       << " without improvement " << state.evaluations_without_improvement << ' ' << to_string(state.end)
       << '\n';
  for (const auto& tensor : record.tensors) text << tensor.first << ' ' << sha256({tensor}) << '\n';
  return text.str();
}

/// Trains in `directory`, from its latest checkpoint if there is one; at microbatch `last` the process kills
/// itself.
template <class C>
void train_in(const fs::path& directory, std::int64_t last, int workers) {
  auto settings = C().settings();
  settings.loader.workers = workers;
  settings.sink = std::make_shared<FileSink>(directory / "events");
  testing::CaseRun<C> run(C(), settings, directory / "log");
  run.set_intercept([last](std::int64_t microbatch, const auto& step) {
    if (microbatch == last) ::kill(::getpid(), SIGKILL);
    return step();
  });
  run.train({.checkpoint_dir = directory / "checkpoints", .resume_from = latest});
  write_text(directory / "result", description(run.record()));
}

constexpr std::int64_t never = 0;

/// The lines of a run's events.
std::vector<std::string> event_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// Those up to the checkpoint that the next run goes on from: of one that was only begun nothing may be left.
std::vector<std::string> events_before_resume(const fs::path& directory) {
  auto lines = event_lines(read_text(directory / "events"));
  const auto saved = list_checkpoints(directory / "checkpoints");
  const auto last = saved.empty() ? std::string("none") : "checkpoint step " + std::to_string(saved.front().step) + " ";
  while (!lines.empty() && !lines.back().starts_with(last)) lines.pop_back();
  return lines;
}

/// What a run left in its folder.
struct Outcome {
  std::string result;
  std::vector<std::string> events;  ///< those that say something of the training

  bool operator==(const Outcome&) const = default;
};

Outcome outcome(const fs::path& directory, std::vector<std::string> events) {
  std::erase_if(events, [](const std::string& line) {
    return line.starts_with("start") || line.starts_with("resume");
  });
  return {read_text(directory / "result"), std::move(events)};
}

std::string difference(const Outcome& expected, const Outcome& found) {
  const auto first = [](const std::vector<std::string>& left, const std::vector<std::string>& right) {
    for (std::size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
      const auto at = [i](const auto& lines) { return i < lines.size() ? lines[i] : std::string("nothing"); };
      if (at(left) != at(right)) return at(right) + "\ninstead of " + at(left);
    }
    return std::string();
  };
  const auto text = first(expected.events, found.events);
  return text.empty() ? first(event_lines(expected.result), event_lines(found.result)) : text;
}

/// Runs the case whole, then killed at each of `microbatches` and resumed; `run` trains in another process
/// and returns how that ended. Prints how many resumed runs equal the whole one, and returns a text on each
/// that does not.
std::vector<std::string> failures(const std::string& name, const std::vector<std::int64_t>& microbatches,
                                  auto run) {
  const TemporaryDirectory whole;
  if (run(whole.path(), never, /*workers=*/0) != 0) throw std::runtime_error("the whole run failed");
  const Outcome expected = outcome(whole.path(), event_lines(read_text(whole.path() / "events")));

  std::vector<std::string> result;
  for (const auto microbatch : microbatches) {
    const TemporaryDirectory directory;
    const std::string where = "killed at microbatch " + std::to_string(microbatch) + ": ";
    if (!ended_by(run(directory.path(), microbatch, static_cast<int>(microbatch % 3)), SIGKILL)) {
      result.push_back(where + "it was not");
      continue;
    }
    auto events = events_before_resume(directory.path());
    fs::remove(directory.path() / "events");
    if (run(directory.path(), never, static_cast<int>(microbatch % 2)) != 0) {
      result.push_back(where + "it did not resume");
      continue;
    }
    const auto resumed = event_lines(read_text(directory.path() / "events"));
    events.insert(events.end(), resumed.begin(), resumed.end());
    const Outcome found = outcome(directory.path(), std::move(events));
    if (found != expected) result.push_back(where + difference(expected, found));
  }
  std::cout << name << ": " << microbatches.size() - result.size() << " of " << microbatches.size()
            << " killed and resumed runs equal the uninterrupted one\n";
  return result;
}

CATCH_TEST_CASE(
    "a run killed at any of its 180 microbatches and resumed equals one that was not, to the last bit") {
  const auto run = [](const fs::path& directory, std::int64_t last, int workers) {
    return in_child_process([&] { train_in<LongRun>(directory, last, workers); });
  };
  CATCH_CHECK(failures("one thread", up_to(180), run) == std::vector<std::string>());
}

// A process that has computed on two threads cannot be forked, so the test program starts itself anew, on the
// test case below, with the run to make in an environment variable.
constexpr const char* run_variable = "LOCKSTEP_TEST_RUN";

int exec_run(const fs::path& directory, std::int64_t last, int workers) {
  const auto order = std::to_string(last) + " " + std::to_string(workers) + " " + directory.string();
  std::fflush(stdout);  // or the child would print what is waiting to be printed here
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    ::setenv(run_variable, order.c_str(), 1);
    if (!std::freopen("/dev/null", "w", stdout)) ::_exit(126);
    ::execl("/proc/self/exe", "invariant_tests", "[two-threads]", nullptr);
    ::_exit(127);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

CATCH_TEST_CASE("a run on two threads, killed and resumed by other processes, equals one that was not",
                "[two-threads]") {
  if (const char* order = std::getenv(run_variable)) {
    std::int64_t last = 0;
    int workers = 0;
    std::string directory;
    std::istringstream(order) >> last >> workers >> directory;
    at::set_num_threads(2);
    CATCH_REQUIRE(at::get_num_threads() == 2);
    train_in<WideRun>(directory, last, workers);
    return;
  }
  CATCH_CHECK(failures("two threads", {1, 6, 11, 14, 22}, exec_run) == std::vector<std::string>());
}

}  // namespace
}  // namespace lockstep::test
