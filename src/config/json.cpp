#include "config/json.hpp"

#include "config/json_codec.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {

template <class T>
nlohmann::json to_json(const T& value) {
  return encode(value);
}

template <class T>
T read_json(const nlohmann::json& json, const Pointer& where) {
  JsonReading reading(JsonReading::Missing::refused);
  T value = blank<T>();
  decode(value, json, where, reading);
  reading.refuse_unknown(json, where);
  if (!reading.mistakes().empty()) {
    const auto& first = reading.mistakes().front();
    throw message::invalid_json_field(first.where.to_string(), first.problem);
  }
  return value;
}

#define LOCKSTEP_JSON(T)                              \
  template nlohmann::json to_json<T>(const T& value); \
  template T read_json<T>(const nlohmann::json& json, const Pointer& where);
LOCKSTEP_JSON(DataLoaderOptions)
LOCKSTEP_JSON(Interval)
LOCKSTEP_JSON(LossScalerOptions)
LOCKSTEP_JSON(Monitor)
LOCKSTEP_JSON(PlateauState)
LOCKSTEP_JSON(Precision)
LOCKSTEP_JSON(Schedule)
LOCKSTEP_JSON(TrainConfig)
LOCKSTEP_JSON(TrainState)
#undef LOCKSTEP_JSON

std::string non_finite_name(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

}  // namespace lockstep
