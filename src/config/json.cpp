#include "config/json.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

using nlohmann::json;
using Pointer = json::json_pointer;

// The fields of each type, listed once for both directions.
template <class T, class U>
concept Is = std::same_as<std::remove_const_t<T>, U>;

void visit_fields(Is<Interval> auto& interval, auto&& field) {
  field("every", interval.every);
  field("unit", interval.unit);
}

void visit_fields(Is<MonitorOptions> auto& options, auto&& field) {
  field("direction", options.direction);
  field("patience", options.patience);
  field("min_delta", options.min_delta);
  field("start_epoch", options.start_epoch);
}

void visit_fields(Is<TrainState> auto& state, auto&& field) {
  field("epoch", state.epoch);
  field("next_batch", state.next_batch);
  field("step", state.step);
  field("batches", state.batches);
  field("samples", state.samples);
  field("best_metric", state.best_metric);
  field("best_step", state.best_step);
  field("evaluations_without_improvement", state.evaluations_without_improvement);
  field("stop_reason", state.stop_reason);
  field("end", state.end);
}

void visit_fields(Is<WarmupDecay> auto& schedule, auto&& field) {
  field("total_steps", schedule.total_steps);
  field("warmup_steps", schedule.warmup_steps);
  field("start_factor", schedule.start_factor);
  field("minimum_factor", schedule.minimum_factor);
  field("decay", schedule.decay);
}

void visit_fields(Is<TrainConfig> auto& config, auto&& field) {
  field("epochs", config.epochs);
  field("max_steps", config.max_steps);
  field("limit_train_batches", config.limit_train_batches);
  field("log_every", config.log_every);
  field("evaluate_every", config.evaluate_every);
  field("evaluate_first", config.evaluate_first);
  field("evaluate_raw", config.evaluate_raw);
  field("limit_evaluation_batches", config.limit_evaluation_batches);
  field("checkpoint_every", config.checkpoint_every);
  field("keep_checkpoints", config.keep_checkpoints);
  field("max_grad_norm", config.max_grad_norm);
  field("monitor", config.monitor);
  field("restore_best", config.restore_best);
}

// Every enumerator with its name.
template <class Enum>
using Names = std::vector<std::pair<Enum, std::string>>;

Names<Interval::Unit> names(Interval::Unit) {
  return {{Interval::Unit::step, "step"}, {Interval::Unit::epoch, "epoch"}};
}
Names<Direction> names(Direction) {
  return {{Direction::minimize, "minimize"}, {Direction::maximize, "maximize"}};
}
Names<WarmupDecay::Decay> names(WarmupDecay::Decay) {
  using enum WarmupDecay::Decay;
  return {{cosine, "cosine"}, {linear, "linear"}, {constant, "constant"}};
}
Names<EndReason> names(EndReason) {
  Names<EndReason> all;
  using enum EndReason;
  for (const EndReason reason : {none, epochs, max_steps, early_stop, stop_request}) {
    all.emplace_back(reason, to_string(reason));
  }
  return all;
}

ConfigError wrong_value(const json& value, const Pointer& where, const std::string& expected) {
  return message::invalid_json_field(
      where.to_string(),
      fmt::format("is {}, give {}", value.dump(-1, ' ', false, json::error_handler_t::replace), expected));
}

template <class T>
json encode(const T& value);

template <class T>
T decode(const json& value, const Pointer& where);

/// An object with the fields of T. The fallback for every type that has no form of its own below.
template <class T>
struct Codec {
  static json encode(const T& value) {
    json object = json::object();
    visit_fields(value, [&](const char* name, const auto& field) { object[name] = lockstep::encode(field); });
    return object;
  }

  static T decode(const json& object, const Pointer& where) {
    if (!object.is_object()) throw wrong_value(object, where, "an object");
    T value;
    std::vector<std::string> known;
    visit_fields(value, [&]<class Field>(const char* name, Field& field) {
      known.emplace_back(name);
      const auto found = object.find(name);
      if (found == object.end())
        throw message::invalid_json_field((where / name).to_string(), "is missing, add it");
      field = lockstep::decode<Field>(*found, where / name);
    });
    for (const auto& item : object.items()) {
      if (std::find(known.begin(), known.end(), item.key()) == known.end()) {
        throw message::invalid_json_field(
            (where / item.key()).to_string(),
            fmt::format("is not known, remove it; known here are {}", fmt::join(known, ", ")));
      }
    }
    return value;
  }
};

template <>
struct Codec<std::int64_t> {
  static json encode(std::int64_t value) { return value; }

  static std::int64_t decode(const json& value, const Pointer& where) {
    const bool fits = !value.is_number_unsigned() ||
                      value.get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    if (!value.is_number_integer() || !fits) throw wrong_value(value, where, "an integer of at most 64 bits");
    return value.get<std::int64_t>();
  }
};

template <>
struct Codec<bool> {
  static json encode(bool value) { return value; }

  static bool decode(const json& value, const Pointer& where) {
    if (!value.is_boolean()) throw wrong_value(value, where, "true or false");
    return value.get<bool>();
  }
};

template <>
struct Codec<double> {
  static json encode(double value) {
    return std::isfinite(value) ? json(value) : json(non_finite_name(value));
  }

  static double decode(const json& value, const Pointer& where) {
    if (value.is_number()) return value.get<double>();
    if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (value == "inf") return std::numeric_limits<double>::infinity();
    if (value == "-inf") return -std::numeric_limits<double>::infinity();
    throw wrong_value(value, where, "a number, \"nan\", \"inf\" or \"-inf\"");
  }
};

template <>
struct Codec<std::string> {
  static json encode(const std::string& value) { return value; }

  static std::string decode(const json& value, const Pointer& where) {
    if (!value.is_string()) throw wrong_value(value, where, "a string");
    return value.get<std::string>();
  }
};

/// A whole number is a count of batches, another number a share of them.
template <>
struct Codec<BatchLimit> {
  static json encode(const BatchLimit& limit) {
    return std::visit([](const auto& value) { return json(value); }, limit.value());
  }

  static BatchLimit decode(const json& value, const Pointer& where) {
    if (value.is_number_float()) return BatchLimit(value.get<double>());
    return BatchLimit(Codec<std::int64_t>::decode(value, where));
  }
};

template <class T>
struct Codec<std::optional<T>> {
  static json encode(const std::optional<T>& value) {
    return value ? lockstep::encode(*value) : json(nullptr);
  }

  static std::optional<T> decode(const json& value, const Pointer& where) {
    if (value.is_null()) return std::nullopt;
    return lockstep::decode<T>(value, where);
  }
};

template <class T>
requires std::is_enum_v<T>
struct Codec<T> {
  static json encode(T value) {
    for (const auto& [enumerator, name] : names(value)) {
      if (enumerator == value) return name;
    }
    return nullptr;
  }

  static T decode(const json& value, const Pointer& where) {
    std::vector<json> allowed;
    for (const auto& [enumerator, name] : names(T{})) {
      if (value == name) return enumerator;
      allowed.emplace_back(name);
    }
    throw wrong_value(value, where, fmt::format("one of {}", json(allowed).dump()));
  }
};

template <>
struct Codec<Monitor> {
  struct Fields {
    std::string metric;
    MonitorOptions options;
  };

  static json encode(const Monitor& monitor) {
    return lockstep::encode(Fields{monitor.metric(), monitor.options()});
  }

  static Monitor decode(const json& value, const Pointer& where) {
    auto [metric, options] = lockstep::decode<Fields>(value, where);
    return Monitor(std::move(metric), options);
  }
};

void visit_fields(Is<Codec<Monitor>::Fields> auto& monitor, auto&& field) {
  field("metric", monitor.metric);
  visit_fields(monitor.options, field);
}

template <class T>
json encode(const T& value) {
  return Codec<T>::encode(value);
}

template <class T>
T decode(const json& value, const Pointer& where) {
  return Codec<T>::decode(value, where);
}

template <>
Interval decode<Interval>(const json& value, const Pointer& where) {
  if (!value.is_string()) return Codec<Interval>::decode(value, where);
  try {
    return Interval::parse(value.get<std::string>());
  } catch (const ConfigError&) {
    throw wrong_value(value, where, R"({"every": 50, "unit": "step"}, "50 steps" or "1 epoch")");
  }
}

}  // namespace

nlohmann::json to_json(const Interval& interval) { return encode(interval); }
nlohmann::json to_json(const Monitor& monitor) { return encode(monitor); }
nlohmann::json to_json(const TrainState& state) { return encode(state); }
nlohmann::json to_json(const WarmupDecay& schedule) { return encode(schedule); }
nlohmann::json to_json(const TrainConfig& config) { return encode(config); }

template <>
Interval read_json<Interval>(const json& value, const Pointer& where) {
  return decode<Interval>(value, where);
}
template <>
Monitor read_json<Monitor>(const json& value, const Pointer& where) {
  return decode<Monitor>(value, where);
}
template <>
TrainState read_json<TrainState>(const json& value, const Pointer& where) {
  return decode<TrainState>(value, where);
}
template <>
WarmupDecay read_json<WarmupDecay>(const json& value, const Pointer& where) {
  return decode<WarmupDecay>(value, where);
}
template <>
TrainConfig read_json<TrainConfig>(const json& value, const Pointer& where) {
  return decode<TrainConfig>(value, where);
}

std::string non_finite_name(double value) {
  if (std::isnan(value)) return "nan";
  return value > 0 ? "inf" : "-inf";
}

}  // namespace lockstep
