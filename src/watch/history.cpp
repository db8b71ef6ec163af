#include "lockstep/watch/history.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/json.hpp"

namespace lockstep {

std::optional<double> EpochRecord::value(const std::string& name) const {
  for (const auto& [own_name, value] : values) {
    if (own_name == name) return value;
  }
  return {};
}

std::vector<History::Point> History::series(const std::string& name) const {
  std::vector<Point> points;
  for (const auto& record : records_) {
    if (const auto value = record.value(name)) points.push_back({record.epoch, record.step, *value});
  }
  return points;
}

std::optional<History::Point> History::best(const std::string& name, Direction direction) const {
  std::optional<Point> best;
  for (const auto& point : series(name)) {
    if (!std::isfinite(point.value)) continue;
    const bool better =
        !best || (direction == Direction::minimize ? point.value < best->value : point.value > best->value);
    if (better) best = point;
  }
  return best;
}

std::string History::json() const {
  using nlohmann::ordered_json;
  auto epochs = ordered_json::array();
  for (const auto& record : records_) {
    auto values = ordered_json::object();
    for (const auto& [name, value] : record.values) {
      values[name] = std::isfinite(value) ? ordered_json(value) : ordered_json(non_finite_name(value));
    }
    epochs.push_back({{"epoch", record.epoch}, {"step", record.step}, {"values", std::move(values)}});
  }
  return epochs.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void History::add(EpochRecord record) {
  const auto values = std::exchange(record.values, {});
  records_.push_back(std::move(record));
  extend(values);
}

void History::extend(const std::vector<std::pair<std::string, double>>& given) {
  auto& values = records_.back().values;
  for (const auto& [name, value] : given) {
    const auto own = column(name);
    const auto place = std::find_if(values.begin(), values.end(),
                                    [&](const auto& other) { return column(other.first) >= own; });
    if (place != values.end() && place->first == name) {
      place->second = value;
    } else {
      values.emplace(place, name, value);
    }
  }
}

std::size_t History::column(const std::string& name) {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) return static_cast<std::size_t>(found - names_.begin());
  names_.push_back(name);
  return names_.size() - 1;
}

}  // namespace lockstep
