// How each type is written as JSON and read from it. Compiled where fmt is in sight; json.hpp is the way in.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "config/fields.hpp"
#include "config/json.hpp"
#include "config/json_reading.hpp"
#include "lockstep/base/error.hpp"

namespace lockstep {

/// What a value is read into when there is none yet.
template <class T>
T blank() {
  return T{};
}
template <>
inline BatchLimit blank<BatchLimit>() {
  return 1;
}
template <>
inline Monitor blank<Monitor>() {
  return Monitor("");
}
template <>
inline Schedule blank<Schedule>() {
  return WarmupDecay{};
}

/// An object with the fields of T. The fallback for every type that has no form of its own below.
template <class T>
struct Codec;

template <class T>
nlohmann::json encode(const T& value) {
  return Codec<T>::encode(value);
}

/// Reads into `value`; what `json` says wrongly or not at all stays as it is.
template <class T>
void decode(T& value, const nlohmann::json& json, const Pointer& where, JsonReading& reading) {
  Codec<T>::decode(value, json, where, reading);
}

template <class T>
struct Codec {
  static nlohmann::json encode(const T& value) {
    auto object = nlohmann::json::object();
    visit_fields(value, [&](const char* name, const auto& field) { object[name] = lockstep::encode(field); });
    return object;
  }

  static void decode(T& value, const nlohmann::json& object, const Pointer& where, JsonReading& reading) {
    if (!object.is_object()) return reading.refuse_value(object, where, "an object");
    visit_fields(value, [&](const char* name, auto& field) {
      reading.know(where / name);
      if (const auto found = object.find(name); found != object.end()) {
        lockstep::decode(field, *found, where / name, reading);
      } else if (reading.missing() == JsonReading::Missing::refused) {
        reading.refuse(where / name, "is missing, add it");
      }
    });
  }
};

template <>
struct Codec<bool> {
  static nlohmann::json encode(bool value) { return value; }

  static void decode(bool& value, const nlohmann::json& json, const Pointer& where, JsonReading& reading) {
    if (!json.is_boolean()) return reading.refuse_value(json, where, "true or false");
    value = json.get<bool>();
  }
};

template <std::integral T>
struct Codec<T> {
  static nlohmann::json encode(T value) { return value; }

  static void decode(T& value, const nlohmann::json& json, const Pointer& where, JsonReading& reading) {
    const bool fits = json.is_number_unsigned()
                          ? std::in_range<T>(json.get<std::uint64_t>())
                          : json.is_number_integer() && std::in_range<T>(json.get<std::int64_t>());
    if (!fits) {
      using Limits = std::numeric_limits<T>;
      return reading.refuse_value(json, where,
                                  fmt::format("an integer from {} to {}", Limits::min(), Limits::max()));
    }
    value = json.get<T>();
  }
};

template <>
struct Codec<double> {
  static nlohmann::json encode(double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(non_finite_name(value));
  }

  static void decode(double& value, const nlohmann::json& json, const Pointer& where, JsonReading& reading) {
    using Limits = std::numeric_limits<double>;
    if (json.is_number()) {
      value = json.get<double>();
    } else if (json == "nan") {
      value = Limits::quiet_NaN();
    } else if (json == "inf") {
      value = Limits::infinity();
    } else if (json == "-inf") {
      value = -Limits::infinity();
    } else {
      reading.refuse_value(json, where, "a number, \"nan\", \"inf\" or \"-inf\"");
    }
  }
};

template <>
struct Codec<std::string> {
  static nlohmann::json encode(const std::string& value) { return value; }

  static void decode(std::string& value, const nlohmann::json& json, const Pointer& where,
                     JsonReading& reading) {
    if (json.is_string()) {
      value = json.get<std::string>();
    } else if (const auto text = reading.texts.find(where.to_string());
               text != reading.texts.end() && json.is_primitive()) {
      value = text->second;
    } else {
      reading.refuse_value(json, where, "a string");
    }
  }
};

template <>
struct Codec<std::filesystem::path> {
  static nlohmann::json encode(const std::filesystem::path& value) { return value.string(); }

  static void decode(std::filesystem::path& value, const nlohmann::json& json, const Pointer& where,
                     JsonReading& reading) {
    std::string text = value.string();
    lockstep::decode(text, json, where, reading);
    value = text;
  }
};

template <class T>
struct Codec<std::optional<T>> {
  static nlohmann::json encode(const std::optional<T>& value) {
    return value ? lockstep::encode(*value) : nlohmann::json(nullptr);
  }

  static void decode(std::optional<T>& value, const nlohmann::json& json, const Pointer& where,
                     JsonReading& reading) {
    if (json.is_null()) return value.reset();
    T read = value ? *value : blank<T>();
    lockstep::decode(read, json, where, reading);
    value = std::move(read);
  }
};

template <class T>
struct Codec<std::vector<T>> {
  static nlohmann::json encode(const std::vector<T>& values) {
    auto array = nlohmann::json::array();
    for (const T& value : values) array.push_back(lockstep::encode(value));
    return array;
  }

  static void decode(std::vector<T>& values, const nlohmann::json& json, const Pointer& where,
                     JsonReading& reading) {
    if (!json.is_array()) return reading.refuse_value(json, where, "an array");
    values.clear();
    for (std::size_t i = 0; i < json.size(); ++i) {
      T value = blank<T>();
      lockstep::decode(value, json[i], where / i, reading);
      values.push_back(std::move(value));
    }
  }
};

template <class T>
requires std::is_enum_v<T>
struct Codec<T> {
  static nlohmann::json encode(T value) {
    for (const auto& [enumerator, name] : names(value)) {
      if (enumerator == value) return name;
    }
    return nullptr;
  }

  static void decode(T& value, const nlohmann::json& json, const Pointer& where, JsonReading& reading) {
    auto allowed = nlohmann::json::array();
    for (const auto& [enumerator, name] : names(value)) {
      if (json == name) {
        value = enumerator;
        return;
      }
      allowed.push_back(name);
    }
    reading.refuse_value(json, where, fmt::format("one of {}", allowed.dump()));
  }
};

template <>
struct Codec<Interval> {
  static nlohmann::json encode(const Interval& interval) { return to_string(interval); }

  static void decode(Interval& interval, const nlohmann::json& json, const Pointer& where,
                     JsonReading& reading) {
    try {
      interval = Interval::parse(json.is_string() ? json.get<std::string>() : json.dump());
    } catch (const ConfigError&) {
      reading.refuse_value(json, where, R"("50 steps" or "1 epoch")");
    }
  }
};

/// A whole number is a count of batches, another number a share of them.
template <>
struct Codec<BatchLimit> {
  static nlohmann::json encode(const BatchLimit& limit) {
    return std::visit([](const auto& value) { return nlohmann::json(value); }, limit.value());
  }

  static void decode(BatchLimit& limit, const nlohmann::json& json, const Pointer& where,
                     JsonReading& reading) {
    if (json.is_number_float()) {
      limit = json.get<double>();
    } else if (json.is_number_integer()) {
      std::int64_t count = 0;
      lockstep::decode(count, json, where, reading);
      limit = count;
    } else {
      reading.refuse_value(json, where, "a number of batches, or a share of them such as 0.5");
    }
  }
};

template <>
struct Codec<Monitor> {
  static nlohmann::json encode(const Monitor& monitor) {
    return lockstep::encode(MonitorFields{monitor.metric(), monitor.options()});
  }

  static void decode(Monitor& monitor, const nlohmann::json& json, const Pointer& where,
                     JsonReading& reading) {
    MonitorFields fields{monitor.metric(), monitor.options()};
    lockstep::decode(fields, json, where, reading);
    monitor = Monitor(std::move(fields.metric), fields.options);
  }
};

/// {"warmup_decay": {its fields}}: one key, the kind.
template <>
struct Codec<Schedule> {
  static nlohmann::json encode(const Schedule& schedule) {
    return std::visit(
        [&](const auto& kind) {
          return nlohmann::json{{std::string(schedule.kind()), lockstep::encode(kind)}};
        },
        schedule.value());
  }

  static void decode(Schedule& schedule, const nlohmann::json& json, const Pointer& where,
                     JsonReading& reading) {
    if (!json.is_object() || json.size() != 1) {
      return reading.refuse_value(json, where, R"(one schedule by its kind, as in {"warmup_decay": {...}})");
    }
    const std::string& given = json.begin().key();
    std::vector<std::string> kinds;
    bool found = false;
    const auto try_kind = [&]<class Kind>(std::type_identity<Kind>) {
      Kind kind = blank<Kind>();
      kinds.emplace_back(Schedule(kind).kind());
      if (kinds.back() != given) return;
      found = true;
      if (const auto* current = std::get_if<Kind>(&schedule.value())) kind = *current;
      reading.know(where / given);
      lockstep::decode(kind, json.front(), where / given, reading);
      schedule = std::move(kind);
    };
    [&]<class... Kind>(std::type_identity<std::variant<Kind...>>) {
      (try_kind(std::type_identity<Kind>()), ...);
    }(std::type_identity<Schedule::Kinds>());
    if (!found)
      reading.refuse(where / given, fmt::format("is no schedule, give one of {}", fmt::join(kinds, ", ")));
  }
};

}  // namespace lockstep
