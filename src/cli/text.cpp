#include "cli/text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace lockstep::cli {
namespace {

/// Columns on a terminal: bytes that begin a character of UTF-8.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; }));
}

void add_leaves(const nlohmann::json& value, const std::string& path,
                std::vector<std::pair<std::string, std::string>>& found) {
  if (!value.is_structured() || value.empty()) {
    found.emplace_back(path, value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  for (const auto& [key, member] : value.items()) {
    add_leaves(member, path + (path.empty() ? "" : ".") + printable(key), found);
  }
}

}  // namespace

std::string size_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < units.size(); value /= 1024) ++unit;
  char text[40];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
  return text;
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const auto size : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(size);
  return text + "]";
}

nlohmann::json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

std::string printable(const std::string& name) {
  const std::string quoted = nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

std::string count_text(std::uint64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::vector<std::pair<std::string, std::string>> leaves(const nlohmann::json& document) {
  std::vector<std::pair<std::string, std::string>> found;
  add_leaves(document, "", found);
  return found;
}

void Table::print(std::ostream& output, const std::string& indent) const {
  std::vector<std::size_t> widths(columns_.size());
  for (const auto& row : rows_) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], width_of(row[column]));
    }
  }
  for (const auto& row : rows_) {
    std::string line = indent;
    for (std::size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - width_of(row[column]), ' ');
      if (column > 0) line += "  ";
      line += columns_[column] == Align::right ? padding + row[column] : row[column] + padding;
    }
    output << line.substr(0, line.find_last_not_of(' ') + 1) << '\n';
  }
}

}  // namespace lockstep::cli
