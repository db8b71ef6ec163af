#include "lockstep/config/schedule.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <functional>
#include <type_traits>

namespace lockstep {

double SequentialSchedule::factor(std::int64_t completed) const {
  assert(completed >= 0 && parts.size() == milestones.size() + 1);
  const auto next = std::upper_bound(milestones.begin(), milestones.end(), completed);
  const std::int64_t start = next == milestones.begin() ? 0 : *(next - 1);
  return parts[static_cast<std::size_t>(next - milestones.begin())].factor(completed - start);
}

bool SequentialSchedule::operator==(const SequentialSchedule& other) const {
  return milestones == other.milestones && parts == other.parts;
}

double Schedule::factor(std::int64_t completed) const {
  return std::visit(
      [&]<class Kind>(const Kind& schedule) -> double {
        if constexpr (std::is_same_v<Kind, Plateau>) {
          assert(false && "a Plateau's multiplier depends on its state");
          return 1;
        } else {
          return schedule.factor(completed);
        }
      },
      value_);
}

std::string_view Schedule::kind() const {
  constexpr std::array<std::string_view, std::variant_size_v<Kinds>> names = {
      "warmup_decay",    "multi_step_decay", "exponential_decay",   "polynomial_decay", "inverse_sqrt_decay",
      "cosine_restarts", "one_cycle",        "warmup_stable_decay", "sequential",       "lambda",
      "plateau"};
  return names[value_.index()];
}

std::vector<std::string> problems(const SequentialSchedule& schedule) {
  std::vector<std::string> found;
  const auto& [parts, milestones] = schedule;
  if (parts.size() < 2) {
    found.push_back(fmt::format(
        "SequentialSchedule.parts has {} schedules: give at least two, or the one by itself.", parts.size()));
  }
  if (!parts.empty() && milestones.size() + 1 != parts.size()) {
    found.push_back(
        fmt::format("SequentialSchedule.milestones has {} counts for {} parts: give one fewer than parts, "
                    "the counts at which the next part begins.",
                    milestones.size(), parts.size()));
  }
  if (!milestones.empty() &&
      (milestones.front() < 1 ||
       std::adjacent_find(milestones.begin(), milestones.end(), std::greater_equal()) != milestones.end())) {
    found.push_back(
        "SequentialSchedule.milestones is out of order: give ascending counts from 1 up, each once.");
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].plateau()) {
      found.push_back(
          fmt::format("SequentialSchedule.parts[{}] is a Plateau, which follows a metric and not a count: "
                      "use it alone.",
                      i));
      continue;
    }
    for (const auto& problem : problems(parts[i])) {
      found.push_back(fmt::format("SequentialSchedule.parts[{}]: {}", i, problem));
    }
  }
  return found;
}

std::vector<std::string> problems(const LambdaSchedule& schedule) {
  std::vector<std::string> found;
  if (schedule.name.empty()) {
    found.push_back("LambdaSchedule.name is empty: name the function; checkpoints keep the name alone.");
  }
  if (!schedule.function) {
    found.push_back(
        fmt::format("LambdaSchedule.function of \"{}\" is not set: give it in the program, since no file "
                    "can hold a function.",
                    schedule.name));
  }
  return found;
}

std::vector<std::string> problems(const Schedule& schedule) {
  return std::visit([](const auto& kind) { return problems(kind); }, schedule.value());
}

}  // namespace lockstep
