#include "lockstep/config/settings.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <utility>
#include <vector>

#include "base/posix_file.hpp"
#include "config/json_codec.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

using nlohmann::json;

/// "train.max_steps" as a pointer.
Pointer pointer_to(std::string_view key) {
  Pointer pointer;
  for (;;) {
    const auto dot = key.find('.');
    pointer /= std::string(key.substr(0, dot));
    if (dot == std::string_view::npos) return pointer;
    key.remove_prefix(dot + 1);
  }
}

json parse_object(std::string_view text, const std::string& source) {
  try {
    json object = json::parse(text);
    if (!object.is_object())
      throw message::invalid_json_text(source, "holds no object, but settings are {...}");
    return object;
  } catch (const json::parse_error& error) {
    const std::string_view read = text.substr(0, error.byte > 0 ? error.byte - 1 : 0);
    const auto line = 1 + std::count(read.begin(), read.end(), '\n');
    const auto column = read.size() - (read.rfind('\n') == read.npos ? 0 : read.rfind('\n') + 1) + 1;
    throw message::invalid_json_text(source,
                                     fmt::format("is no JSON from line {}, column {} on", line, column));
  }
}

/// "TRAIN__MAX_STEPS" as "train.max_steps".
std::string key_of_variable(std::string_view name) {
  std::string key;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.substr(i).starts_with("__")) {
      key += '.';
      ++i;
    } else {
      key += static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
    }
  }
  return key;
}

}  // namespace

struct Settings::Layers {
  json given = json::object();
  json resolved = json::object();
  JsonReading reading{JsonReading::Missing::keeps_value};
  std::map<std::string, std::string> sources;  ///< of each value that is no object, by pointer

  void merge(json& into, const json& layer, const Pointer& where, const std::string& source) {
    if (!layer.is_object()) {
      into = layer;
      note(layer, where, source);
      return;
    }
    if (!into.is_object()) into = json::object();
    for (const auto& item : layer.items()) merge(into[item.key()], item.value(), where / item.key(), source);
  }

  void note(const json& value, const Pointer& where, const std::string& source) {
    reading.texts.erase(where.to_string());
    if (!value.is_object()) {
      sources[where.to_string()] = source;
      return;
    }
    for (const auto& item : value.items()) note(item.value(), where / item.key(), source);
  }

  /// The value at `where`, or null if there is none. A value on the way to it that is no object is a mistake.
  const json* find(const Pointer& where) {
    std::vector<std::string> parts;
    for (Pointer rest = where; !rest.empty(); rest.pop_back()) parts.insert(parts.begin(), rest.back());
    const json* value = &given;
    Pointer here;
    for (const std::string& part : parts) {
      if (!value->is_object()) {
        if (!reading.refused(here)) reading.refuse_value(*value, here, "an object");
        return nullptr;
      }
      const auto found = value->find(part);
      if (found == value->end()) return nullptr;
      value = &*found;
      here /= part;
    }
    return value;
  }

  /// Where the value at `where`, or the array around it, or the first value in it, came from; "" for a
  /// default.
  [[nodiscard]] std::string source_of(const Pointer& where) const {
    for (Pointer around = where; !around.empty(); around.pop_back()) {
      if (const auto found = sources.find(around.to_string()); found != sources.end()) return found->second;
    }
    const std::string inside = where.to_string() + "/";
    const auto first = sources.lower_bound(inside);
    return first != sources.end() && first->first.starts_with(inside) ? first->second : "";
  }
};

Settings::Settings() : layers_(std::make_unique<Layers>()) {}
Settings::~Settings() = default;
Settings::Settings(Settings&&) noexcept = default;
Settings& Settings::operator=(Settings&&) noexcept = default;

void Settings::merge(std::string_view text, const std::string& source) {
  layers_->merge(layers_->given, parse_object(text, source), Pointer(), source);
}

void Settings::merge_file(const std::filesystem::path& file) {
  merge(InputFile(file).text(), file.string());
}

void Settings::merge_environment(const std::string& prefix) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view variable = *entry;
    const auto equals = variable.find('=');
    if (equals == variable.npos || !variable.starts_with(prefix)) continue;
    const std::string_view name = variable.substr(0, equals);
    if (name.find("__", prefix.size()) != name.npos) variables.emplace(name, variable.substr(equals + 1));
  }
  for (const auto& [name, text] : variables) {
    assign(key_of_variable(std::string_view(name).substr(prefix.size())), text, name);
  }
}

void Settings::assign(std::string_view key, std::string_view text, const std::string& source) {
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) value = std::string(text);
  const Pointer where = pointer_to(key);

  json* place = &layers_->given;
  for (std::string_view rest = key;;) {
    const auto dot = rest.find('.');
    if (!place->is_object()) *place = json::object();
    place = &(*place)[std::string(rest.substr(0, dot))];
    if (dot == rest.npos) break;
    rest.remove_prefix(dot + 1);
  }
  *place = value;
  layers_->note(value, where, source);
  layers_->reading.texts[where.to_string()] = text;
}

void Settings::assign(std::string_view assignment) {
  const auto equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0) {
    refuse(assignment, "is no assignment, write one as in train.max_steps=500");
    return;
  }
  assign(assignment.substr(0, equals), assignment.substr(equals + 1), std::string(assignment));
}

template <Setting T>
void Settings::read(std::string_view key, T& value) {
  const Pointer where = pointer_to(key);
  layers_->reading.know(where);
  const json* given = layers_->find(where);
  if constexpr (requires { visit_fields(value, [](const char*, auto&) {}); }) {
    // So that the fields of a section that was not given are known too, for a key that stands outside of it.
    static const json empty = json::object();
    if (!given) given = &empty;
  }
  if (given) decode(value, *given, where, layers_->reading);
  layers_->resolved[where] = encode(value);
}

void Settings::refuse(std::string_view key, const std::string& problem) {
  layers_->reading.refuse(pointer_to(key), problem);
}

void Settings::finish() {
  layers_->reading.refuse_unknown(layers_->given, Pointer());
  std::vector<std::string> problems;
  for (const auto& [where, problem] : layers_->reading.mistakes()) {
    problems.push_back(message::problem_value(where.to_string(), layers_->source_of(where), problem));
  }
  if (!problems.empty()) throw message::invalid_settings(problems);
}

std::string Settings::resolved() const { return layers_->resolved.dump(2); }

#define LOCKSTEP_SETTING(T)                                         \
  template void Settings::read<T>(std::string_view key, T & value); \
  template void Settings::read<std::optional<T>>(std::string_view key, std::optional<T> & value);
LOCKSTEP_SETTING(bool)
LOCKSTEP_SETTING(int)
LOCKSTEP_SETTING(std::int64_t)
LOCKSTEP_SETTING(std::uint64_t)
LOCKSTEP_SETTING(double)
LOCKSTEP_SETTING(std::string)
LOCKSTEP_SETTING(std::filesystem::path)
LOCKSTEP_SETTING(BatchLimit)
LOCKSTEP_SETTING(DataLoaderOptions)
LOCKSTEP_SETTING(Interval)
LOCKSTEP_SETTING(LossScalerOptions)
LOCKSTEP_SETTING(Monitor)
LOCKSTEP_SETTING(Precision)
LOCKSTEP_SETTING(Schedule)
LOCKSTEP_SETTING(TrainConfig)
#undef LOCKSTEP_SETTING

}  // namespace lockstep
