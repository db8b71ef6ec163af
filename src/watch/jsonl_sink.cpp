#include "watch/jsonl_sink.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "config/json.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

double seconds_since_1970() {
  using namespace std::chrono;
  return static_cast<double>(duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count()) /
         1000;
}

std::string to_line(const LogEvent& event) {
  using nlohmann::ordered_json;
  ordered_json values = ordered_json::object();
  for (const auto& [name, value] : event.values) {
    values[name] = std::isfinite(value) ? ordered_json(value) : ordered_json(non_finite_name(value));
  }
  const ordered_json line = {
      {"event", event.event},     {"step", event.step},           {"epoch", event.epoch},
      {"samples", event.samples}, {"time", seconds_since_1970()}, {"values", std::move(values)},
      {"text", event.text}};
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

bool ends_with_newline(int file) {
  struct stat status = {};
  char last = '\n';
  if (::fstat(file, &status) == 0 && status.st_size > 0) (void)!::pread(file, &last, 1, status.st_size - 1);
  return last == '\n';
}

}  // namespace

JsonlSink::JsonlSink(std::filesystem::path path, std::function<void(const std::string&)> warn)
    : path_(std::move(path)),
      warn_(std::move(warn)),
      file_(::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666)) {
  if (file_.get() < 0) throw message::cannot_write_file(path_, errno);
  at_line_start_ = ends_with_newline(file_.get());
}

void JsonlSink::write(const LogEvent& event) {
  const std::string line = (at_line_start_ ? "" : "\n") + to_line(event);
  std::string_view rest = line;
  while (!rest.empty()) {
    const auto written = ::write(file_.get(), rest.data(), rest.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      if (lost_++ == 0) warn_(message::events_are_lost(path_, errno));
      return;
    }
    at_line_start_ = rest[static_cast<std::size_t>(written) - 1] == '\n';
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void JsonlSink::finish() {
  // EINVAL: not a file that could be synced.
  if (::fsync(file_.get()) != 0 && errno != EINVAL) warn_(message::events_are_lost(path_, errno));
  if (lost_ > 0) warn_(message::events_were_lost(path_, std::exchange(lost_, 0)));
}

}  // namespace lockstep
