#include "watch/jsonl_sink.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "config/json.hpp"

namespace lockstep {
namespace {

std::string to_line(const LogEvent& event) {
  using nlohmann::ordered_json;
  ordered_json values = ordered_json::object();
  for (const auto& [name, value] : event.values) {
    values[name] = std::isfinite(value) ? ordered_json(value) : ordered_json(non_finite_name(value));
  }
  const ordered_json line = {{"event", event.event},     {"step", event.step},
                             {"epoch", event.epoch},     {"samples", event.samples},
                             {"time", event.time},       {"values", std::move(values)},
                             {"text", event.text}};
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

JsonlSink::JsonlSink(std::filesystem::path path)
    : file_(std::move(path)), at_line_start_(file_.at_line_start()) {}

void JsonlSink::write(const LogEvent& event) {
  std::string line = to_line(event);
  if (!at_line_start_) line.insert(line.begin(), '\n');
  file_.append(line);
  at_line_start_ = true;
}

}  // namespace lockstep
