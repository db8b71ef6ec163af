#include "lockstep/watch/run_logger.hpp"

#include <fmt/format.h>
#include <spdlog/logger.h>

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "config/debug_variable.hpp"
#include "lockstep/base/messages.hpp"
#include "watch/console_sink.hpp"
#include "watch/jsonl_sink.hpp"
#include "watch/run_directory.hpp"
#include "watch/run_record.hpp"
#include "watch/tensorboard_sink.hpp"

namespace lockstep {
namespace {

double seconds_since_1970() {
  using namespace std::chrono;
  return static_cast<double>(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count()) /
         1000;
}

spdlog::logger& console_logger() {
  static const auto logger = make_console_logger();
  return *logger;
}

}  // namespace

/// On the main process all of it; on the others the path alone.
struct RunLogger::Impl {
  struct NamedSink {
    std::string name;
    std::shared_ptr<Sink> sink;
    bool warned = false;
    std::int64_t lost = 0;
  };

  std::filesystem::path run_dir;
  std::optional<RunDirectory> directory;
  std::optional<RunRecord> record;
  std::shared_ptr<ConsoleSink> console;
  std::vector<NamedSink> sinks;
  int added_sinks = 0;
  bool ended = true;
  bool console_only = false;  // in this train() call

  void warn(const std::string& text) { console->print(spdlog::level::warn, text); }

  template <class Call>
  void call_sinks(Call call, std::int64_t events_in_call) {
    for (NamedSink& sink : sinks) {
      if (console_only && sink.sink != console) continue;
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
  impl.console = std::make_shared<ConsoleSink>(std::move(options.console), options.quiet,
                                               options.seconds_between_lines);
  impl.sinks = {{"the console", impl.console}};
  if (!options.files || debug_variable()) return;
  impl.directory.emplace(impl.run_dir);
  impl.record.emplace(*impl.directory, options.record_git);
  impl.sinks.insert(impl.sinks.begin(),
                    {"metrics.jsonl", std::make_shared<JsonlSink>(impl.run_dir / "metrics.jsonl")});
  if (options.tensorboard)
    impl.sinks.push_back({"the TensorBoard files", std::make_shared<TensorboardSink>(*impl.directory)});
}

RunLogger::~RunLogger() {
  if (!impl_->ended) end();
}

const std::filesystem::path& RunLogger::run_dir() const { return impl_->run_dir; }

void RunLogger::add_sink(std::shared_ptr<Sink> sink) {
  if (!impl_->console) return;
  impl_->sinks.push_back({fmt::format("the added sink {}", ++impl_->added_sinks), std::move(sink)});
}

void RunLogger::log(LogEvent event) {
  impl_->ended = false;
  if (event.time == 0) event.time = seconds_since_1970();
  impl_->call_sinks([&](Sink& sink) { sink.write(event); }, 1);
}

void RunLogger::begin(const RunStart& start) {
  if (!impl_->console) return;
  impl_->ended = false;
  impl_->console_only = start.console_only;
  if (impl_->directory && !start.console_only) {
    impl_->directory->replace_file("config.json", start.config + "\n");
    impl_->record->begin(start);
  }
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
  for (auto& sink : impl_->sinks) {
    if (sink.lost > 0) impl_->warn(message::events_were_lost(sink.name, std::exchange(sink.lost, 0)));
    sink.warned = false;
  }
  impl_->console_only = false;
}

void info_on_console(const std::string& text) { console_logger().info(spdlog::string_view_t(text)); }
void warn_on_console(const std::string& text) { console_logger().warn(spdlog::string_view_t(text)); }

}  // namespace lockstep
