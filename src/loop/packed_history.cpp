#include "loop/packed_history.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lockstep {

using nlohmann::json;

std::string packed(const History& history) {
  const auto& names = history.names();
  auto records = json::array();
  for (const auto& record : history) {
    auto values = json::array();
    for (const auto& [name, value] : record.values) {
      values.push_back(std::find(names.begin(), names.end(), name) - names.begin());
      values.push_back(value);
    }
    records.push_back({record.epoch, record.step, std::move(values)});
  }
  const auto bytes = json::to_msgpack({{"names", names}, {"epochs", std::move(records)}});
  return {bytes.begin(), bytes.end()};
}

History unpacked(const std::string& bytes) {
  const json all = json::from_msgpack(bytes);
  const json& names = all.at("names");
  History history;
  for (const auto& packed_record : all.at("epochs")) {
    EpochRecord record{.epoch = packed_record.at(0), .step = packed_record.at(1)};
    const json& values = packed_record.at(2);
    for (std::size_t i = 0; i < values.size(); i += 2) {
      record.values.emplace_back(names.at(values.at(i).get<std::size_t>()), values.at(i + 1));
    }
    history.add(std::move(record));
  }
  return history;
}

}  // namespace lockstep
