#include "watch/jsonl_sink.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "config/json.hpp"

namespace lockstep {
namespace {

// A tree of JSON values for each line would cost more than the rest of logging it.

void append_quoted(std::string& line, std::string_view text) {
  const auto is_plain = [](unsigned char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; };
  if (std::all_of(text.begin(), text.end(), is_plain)) {
    line.append("\"").append(text).append("\"");
  } else {
    line += nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
}

/// As a number with a decimal point or an exponent, so that readers take it for no integer.
void append_number(std::string& line, double value) {
  if (!std::isfinite(value)) return append_quoted(line, non_finite_name(value));
  std::array<char, 32> text;
  const auto end = std::to_chars(text.begin(), text.end(), value).ptr;
  line.append(text.begin(), end);
  if (std::all_of(text.begin(), end, [](char c) { return c == '-' || (c >= '0' && c <= '9'); })) line += ".0";
}

std::string to_line(const LogEvent& event) {
  std::string line = "{\"event\":";
  append_quoted(line, event.event);
  line += ",\"step\":" + std::to_string(event.step) + ",\"epoch\":" + std::to_string(event.epoch) +
          ",\"samples\":" + std::to_string(event.samples) + ",\"time\":";
  append_number(line, event.time);
  line += ",\"values\":{";
  const char* separator = "";
  for (const auto& [name, value] : event.values) {
    line += std::exchange(separator, ",");
    append_quoted(line, name);
    line += ':';
    append_number(line, value);
  }
  line += "},\"text\":";
  append_quoted(line, event.text);
  return line += "}\n";
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
