// Any schedule of the learning rate, as one value.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/config/decay_schedules.hpp"
#include "lockstep/config/plateau.hpp"
#include "lockstep/config/warmup_decay.hpp"

namespace lockstep {

class Schedule;

/// One schedule after another: parts[i] from milestones[i - 1] on, each counting from its own start. Torch:
/// SequentialLR.
struct SequentialSchedule {
  std::vector<Schedule> parts;  ///< at least two; no Plateau
  std::vector<std::int64_t>
      milestones;  ///< ascending, one fewer than parts: the counts at which the next part begins

  [[nodiscard]] double factor(std::int64_t completed) const;
  bool operator==(const SequentialSchedule&) const;
};

/// A function of your own. Torch: LambdaLR.
///
/// A checkpoint keeps the name alone, and equal names are taken for equal functions: change the name with the
/// function.
struct LambdaSchedule {
  std::string name = {};
  /// Completed count in, multiplier out. Must depend on its argument alone, or a resumed run differs.
  std::function<double(std::int64_t completed)> function = {};

  [[nodiscard]] double factor(std::int64_t completed) const { return function(completed); }
  bool operator==(const LambdaSchedule& other) const { return name == other.name; }
};

namespace detail {

template <class T, class Variant>
inline constexpr bool is_alternative = false;
template <class T, class... Alternatives>
inline constexpr bool is_alternative<T, std::variant<Alternatives...>> = (std::same_as<T, Alternatives> ||
                                                                          ...);

}  // namespace detail

/// Holds a value of any of the schedule types, and is made from it without a word.
class Schedule {
 public:
  using Kinds =
      std::variant<WarmupDecay, MultiStepDecay, ExponentialDecay, PolynomialDecay, InverseSqrtDecay,
                   CosineRestarts, OneCycle, WarmupStableDecay, SequentialSchedule, LambdaSchedule, Plateau>;

  template <class Kind>
  requires detail::is_alternative<Kind, Kinds> Schedule(Kind kind)
      : value_(std::in_place_type<Kind>, std::move(kind)) {}  // NOLINT: implicit on purpose

  /// The multiplier of the base learning rate for the update that follows `completed` updates, or epochs. Not
  /// for a Plateau, whose multiplier is PlateauState::factor.
  [[nodiscard]] double factor(std::int64_t completed) const;

  /// The Plateau in it, or null if the schedule depends on the count alone. Valid as long as this object.
  [[nodiscard]] const Plateau* plateau() const { return std::get_if<Plateau>(&value_); }

  /// "warmup_decay", "multi_step_decay", ...: the type's name, as in settings files and checkpoints.
  [[nodiscard]] std::string_view kind() const;

  [[nodiscard]] const Kinds& value() const { return value_; }

  bool operator==(const Schedule&) const = default;

 private:
  Kinds value_;
};

/// Every mistake in the settings, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const SequentialSchedule& schedule);
std::vector<std::string> problems(const LambdaSchedule& schedule);
std::vector<std::string> problems(const Schedule& schedule);

}  // namespace lockstep
