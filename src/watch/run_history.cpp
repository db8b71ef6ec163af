#include "lockstep/watch/run_history.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/posix_file.hpp"

namespace lockstep {
namespace {

double number(const nlohmann::ordered_json& value) {
  using Limits = std::numeric_limits<double>;
  if (value == "nan") return Limits::quiet_NaN();
  if (value == "inf") return Limits::infinity();
  if (value == "-inf") return -Limits::infinity();
  return value.get<double>();
}

std::optional<LogEvent> parse_line(std::string_view line) try {
  const auto json = nlohmann::ordered_json::parse(line);
  LogEvent event{.event = json.at("event"),
                 .step = json.at("step"),
                 .epoch = json.at("epoch"),
                 .samples = json.at("samples"),
                 .text = json.at("text"),
                 .time = json.at("time")};
  for (const auto& [name, value] : json.at("values").items()) event.values.emplace_back(name, number(value));
  return event;
} catch (const nlohmann::ordered_json::exception&) {
  return {};
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char character : text) {
    if (character == '"') quoted += '"';
    quoted += character;
  }
  return quoted + '"';
}

struct Row {
  LogEvent last;
  std::map<std::string, double> values = {};
};

}  // namespace

std::vector<LogEvent> read_run_history(const std::filesystem::path& metrics) {
  const std::string text = InputFile(metrics).text();

  std::vector<LogEvent> events;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    auto event = parse_line(line);
    if (!event) continue;
    if (event->event == "start") events.clear();
    if (event->event == "resume") {
      std::erase_if(events, [&](const LogEvent& earlier) {
        return std::tie(earlier.step, earlier.samples) > std::tie(event->step, event->samples);
      });
    }
    events.push_back(*std::move(event));
  }
  return events;
}

void export_csv(const std::filesystem::path& metrics, const std::filesystem::path& csv) {
  std::vector<std::string> columns;
  std::set<std::string> known;
  std::map<std::int64_t, Row> rows;
  for (LogEvent& event : read_run_history(metrics)) {
    if (event.values.empty()) continue;
    Row& row = rows[event.step];
    for (const auto& [name, value] : event.values) {
      if (known.insert(name).second) columns.push_back(name);
      row.values[name] = value;
    }
    row.last = std::move(event);
  }

  std::string table = "step,epoch,samples,time";
  for (const auto& column : columns) table += fmt::format(",{}", csv_field(column));
  table += "\n";
  for (const auto& [step, row] : rows) {
    table += fmt::format("{},{},{},{}", step, row.last.epoch, row.last.samples, row.last.time);
    for (const auto& column : columns) {
      table += ",";
      if (const auto value = row.values.find(column); value != row.values.end())
        table += fmt::format("{}", value->second);
    }
    table += "\n";
  }

  std::filesystem::path temporary = csv;
  temporary += ".new";
  remove_tree(temporary);
  OutputFile file(temporary);
  file.write(table.data(), table.size());
  file.finish();
  rename_durably(temporary, csv);
}

}  // namespace lockstep
