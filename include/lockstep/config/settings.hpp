// The settings of a program, from files, the environment and the command line.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/config/batch_limit.hpp"
#include "lockstep/config/data_loader_options.hpp"
#include "lockstep/config/interval.hpp"
#include "lockstep/config/monitor.hpp"
#include "lockstep/config/precision.hpp"
#include "lockstep/config/schedule.hpp"
#include "lockstep/config/train_config.hpp"

namespace lockstep {

namespace detail {

template <class T, class... Types>
concept OneOf = (std::same_as<T, Types> || ...);

template <class T>
struct WithoutOptional {
  using Type = T;
};
template <class T>
struct WithoutOptional<std::optional<T>> {
  using Type = T;
};

}  // namespace detail

/// What Settings::read() fills, by itself or as a std::optional, whose null leaves it unset.
template <class T>
concept Setting =
    detail::OneOf<typename detail::WithoutOptional<T>::Type, bool, int, std::int64_t, std::uint64_t, double,
                  std::string, std::filesystem::path, BatchLimit, DataLoaderOptions, Interval, LossScalerOptions,
                  Monitor, Precision, Schedule, TrainConfig>;

/// JSON in layers, read by keys such as "train" or "train.max_steps"; each layer wins over those added before
/// it.
///
/// The defaults are what the program's variables hold when they are read. A program adds, in this order, its
/// files, the environment, its flags and what it was told to assign; it reads everything; and it calls
/// finish(), which throws every mistake at once. The library reads no command line itself.
///
///     ls::Settings settings;
///     if (config_file) settings.merge_file(*config_file);
///     settings.merge_environment("LOCKSTEP_");              // LOCKSTEP_TRAIN__MAX_STEPS=500
///     for (auto& text : assignments) settings.assign(text);  // train.max_steps=500
///     ls::TrainConfig train{.epochs = 4};
///     std::int64_t width = 64;
///     settings.read("train", train);
///     settings.read("model.width", width);
///     settings.finish();
class Settings {
 public:
  Settings();
  ~Settings();
  Settings(Settings&&) noexcept;
  Settings& operator=(Settings&&) noexcept;

  /// Adds an object as a layer: objects are merged key by key, everything else is replaced. `source` names it
  /// in errors. Errors: ConfigError `invalid-json-text`.
  void merge(std::string_view json, const std::string& source);
  /// Errors: FileError `cannot-read-file`, ConfigError `invalid-json-text`.
  void merge_file(const std::filesystem::path& file);
  /// Adds every variable that is `prefix` and a key of two or more parts, in capitals with "__" for ".".
  /// Others with the prefix may mean something else and are left alone.
  void merge_environment(const std::string& prefix);

  /// Replaces the value at `key`. `text` is JSON if it can be read as such ("500", "true", "null"), else a
  /// string.
  void assign(std::string_view key, std::string_view text, const std::string& source);
  /// Takes "train.max_steps=500".
  void assign(std::string_view assignment);

  /// Fills `value`, whose content stays where the layers say nothing.
  template <Setting T>
  void read(std::string_view key, T& value);

  /// Adds a mistake of the program's own finding: the value at `key`, then `problem`, as in "is odd, give an
  /// even one".
  void refuse(std::string_view key, const std::string& problem);

  /// Every key that was never read, with the nearest that was, and every wrong value, each with where it came
  /// from. Errors: ConfigError `invalid-settings`.
  void finish();

  /// Everything that was read, defaults included, as the text of a JSON object that merge_file() takes back.
  [[nodiscard]] std::string resolved() const;

 private:
  struct Layers;
  std::unique_ptr<Layers> layers_;
};

}  // namespace lockstep
