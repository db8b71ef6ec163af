#include "config/json_reading.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lockstep {
namespace {

/// Insertions, deletions, substitutions and swaps of neighbours that turn one into the other (optimal string
/// alignment).
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> distance(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = i + j;
        continue;
      }
      const std::size_t substitution = a[i - 1] == b[j - 1] ? 0 : 1;
      distance[i][j] =
          std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, distance[i - 1][j - 1] + substitution});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

}  // namespace

void JsonReading::refuse_value(const nlohmann::json& value, const Pointer& where,
                               const std::string& expected) {
  const auto replace = nlohmann::json::error_handler_t::replace;
  refuse(where, fmt::format("is {}, give {}", value.dump(-1, ' ', false, replace), expected));
}

bool JsonReading::refused(const Pointer& where) const {
  return std::any_of(mistakes_.begin(), mistakes_.end(),
                     [&](const Mistake& mistake) { return mistake.where == where; });
}

void JsonReading::refuse_unknown(const nlohmann::json& document, const Pointer& where) {
  if (!document.is_structured() || refused(where)) return;
  for (const auto& item : document.items()) {
    const Pointer child = document.is_array() ? where / std::stoul(item.key()) : where / item.key();
    const std::string text = child.to_string();
    const bool leads_on = std::any_of(known_.begin(), known_.end(), [&](const std::string& known) {
      return known == text || known.starts_with(text + "/");
    });
    if (leads_on || document.is_array()) {
      refuse_unknown(item.value(), child);
    } else if (!refused(child)) {
      refuse(child, "is not known" + suggestion(where, item.key()));
    }
  }
}

std::string JsonReading::suggestion(const Pointer& parent, const std::string& key) const {
  const std::string prefix = parent.to_string() + "/";
  std::vector<std::string> siblings;
  for (const std::string& known : known_) {
    if (!known.starts_with(prefix)) continue;
    const std::string sibling = known.substr(prefix.size(), known.find('/', prefix.size()) - prefix.size());
    if (std::find(siblings.begin(), siblings.end(), sibling) == siblings.end()) siblings.push_back(sibling);
  }
  const std::string* nearest = nullptr;
  std::size_t smallest = std::max<std::size_t>(2, key.size() / 3) + 1;
  for (const std::string& sibling : siblings) {
    if (const std::size_t distance = edit_distance(key, sibling); distance < smallest) {
      nearest = &sibling;
      smallest = distance;
    }
  }
  if (nearest) return fmt::format(" (did you mean \"{}\"?), correct or remove it", *nearest);
  for (const std::string& known : known_) {
    if (known.ends_with((Pointer() / key).to_string()))
      return fmt::format(" (did you mean \"{}\"?), correct or remove it", known);
  }
  return fmt::format(", remove it; known here are {}", fmt::join(siblings, ", "));
}

}  // namespace lockstep
