#include "lockstep/watch/run_logger.hpp"

#include <fmt/chrono.h>
#include <spdlog/logger.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <exception>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "lockstep/base/messages.hpp"
#include "lockstep/base/version.hpp"
#include "watch/console_sink.hpp"
#include "watch/jsonl_sink.hpp"
#include "watch/run_directory.hpp"

namespace lockstep {
namespace {

#ifdef __clang__
constexpr const char* compiler = "clang++ " __clang_version__;
#else
constexpr const char* compiler = "g++ " __VERSION__;
#endif

std::string host_name() {
  std::array<char, 256> name = {};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

double seconds_since_1970() {
  using namespace std::chrono;
  return static_cast<double>(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count()) /
         1000;
}

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

std::string describe_run(const std::vector<std::pair<std::string, std::string>>& versions) {
  using nlohmann::ordered_json;
  ordered_json version = {{"lockstep", LOCKSTEP_VERSION}, {"compiler", compiler}};
  for (const auto& [name, text] : versions) version[name] = text;
  const auto now = std::chrono::time_point_cast<std::chrono::seconds>(std::chrono::system_clock::now());
  const ordered_json run = {{"started", fmt::format("{:%FT%TZ}", fmt::gmtime(now))},
                            {"host", host_name()},
                            {"process", ::getpid()},
                            {"command", command_line()},
                            {"versions", std::move(version)}};
  return run.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

struct NamedSink {
  std::string name;
  std::shared_ptr<Sink> sink;
  bool warned = false;
  std::int64_t lost = 0;
};

/// On the main process all of it; on the others the path alone.
struct RunLogger::Impl {
  std::filesystem::path run_dir;
  std::optional<RunDirectory> directory;
  std::shared_ptr<ConsoleSink> console;
  std::vector<NamedSink> sinks;
  int added_sinks = 0;
  bool ended = true;

  void warn(const std::string& text) { console->print(spdlog::level::warn, text); }

  template <class Call>
  void call_sinks(Call call, std::int64_t events_in_call) {
    for (NamedSink& sink : sinks) {
      try {
        call(*sink.sink);
      } catch (const std::exception& error) {
        failed(sink, error.what(), events_in_call);
      } catch (...) {
        failed(sink, "an exception that is no std::exception.", events_in_call);
      }
    }
  }

  void failed(NamedSink& sink, const std::string& reason, std::int64_t events_in_call) {
    sink.lost += events_in_call;
    if (!std::exchange(sink.warned, true)) warn(message::sink_failed(sink.name, reason));
  }
};

RunLogger::RunLogger(std::filesystem::path run_dir, RunLoggerOptions options)
    : impl_(std::make_unique<Impl>()) {
  Impl& impl = *impl_;
  impl.run_dir = std::move(run_dir);
  if (!options.is_main_process) return;
  impl.directory.emplace(impl.run_dir);
  impl.console = std::make_shared<ConsoleSink>(std::move(options.console), options.quiet);
  impl.sinks = {{"metrics.jsonl", std::make_shared<JsonlSink>(impl.run_dir / "metrics.jsonl")},
                {"the console", impl.console}};
}

RunLogger::~RunLogger() {
  if (!impl_->ended) end();
}

const std::filesystem::path& RunLogger::run_dir() const { return impl_->run_dir; }

void RunLogger::add_sink(std::shared_ptr<Sink> sink) {
  if (!impl_->directory) return;
  impl_->sinks.push_back({fmt::format("the added sink {}", ++impl_->added_sinks), std::move(sink)});
}

void RunLogger::log(LogEvent event) {
  impl_->ended = false;
  if (event.time == 0) event.time = seconds_since_1970();
  impl_->call_sinks([&](Sink& sink) { sink.write(event); }, 1);
}

void RunLogger::begin(const RunStart& start) {
  if (!impl_->directory) return;
  impl_->ended = false;
  impl_->directory->replace_file("config.json", start.config + "\n");
  impl_->directory->replace_file("run.json", describe_run(start.versions));
  impl_->call_sinks([&](Sink& sink) { sink.begin(start); }, 0);
}

void RunLogger::progress(std::int64_t step) {
  if (impl_->console) impl_->console->progress(step);
}

void RunLogger::info(const std::string& text) {
  if (impl_->console) impl_->console->print(spdlog::level::info, text);
}

void RunLogger::warn(const std::string& text) {
  if (impl_->console) impl_->warn(text);
}

void RunLogger::end() {
  impl_->ended = true;
  impl_->call_sinks([](Sink& sink) { sink.finish(); }, 0);
  for (NamedSink& sink : impl_->sinks) {
    if (sink.lost > 0) impl_->warn(message::events_were_lost(sink.name, std::exchange(sink.lost, 0)));
    sink.warned = false;
  }
}

void warn_on_console(const std::string& text) {
  static const auto logger = make_console_logger();
  logger->warn(spdlog::string_view_t(text));
}

}  // namespace lockstep
