#include "lockstep/config/decay_schedules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numbers>
#include <string_view>

namespace lockstep {
namespace {

/// From `start` at x = 0 to `end` at x = 1, along half a cosine.
double along_cosine(double start, double end, double x) {
  return end + (start - end) * (1 + std::cos(std::numbers::pi * x)) / 2;
}

double along_line(double start, double end, double x) { return start + (end - start) * x; }

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

/// Collects the mistakes of one schedule; `type` begins every sentence.
class Problems {
 public:
  explicit Problems(std::string_view type) : type_(type) {}

  void add(std::string_view field, const std::string& problem) {
    found_.push_back(fmt::format("{}.{} {}", type_, field, problem));
  }
  void need_factor(std::string_view field, double value) {
    if (!(value >= 0 && value <= 1)) add(field, fmt::format("is {}: give a factor from 0 to 1.", value));
  }
  void need_gamma(double value) {
    if (!(value > 0 && value <= 1)) {
      add("gamma", fmt::format("is {}: give a factor above 0 and at most 1, for example 0.9.", value));
    }
  }
  void need_at_least_one(std::string_view field, std::int64_t value) {
    if (value < 1) add(field, fmt::format("is {}: give at least 1.", value));
  }
  void need_total_steps(std::int64_t value) {
    if (value < 1) {
      add("total_steps",
          fmt::format("is {}: give at least 1, for example trainer.planned_steps(config).", value));
    }
  }
  [[nodiscard]] std::vector<std::string> found() && { return std::move(found_); }

 private:
  std::string_view type_;
  std::vector<std::string> found_;
};

}  // namespace

double MultiStepDecay::factor(std::int64_t completed) const {
  assert(completed >= 0);
  const auto passed = std::upper_bound(milestones.begin(), milestones.end(), completed) - milestones.begin();
  return std::pow(gamma, static_cast<double>(passed));
}

double ExponentialDecay::factor(std::int64_t completed) const {
  assert(completed >= 0);
  return std::pow(gamma, static_cast<double>(completed));
}

double PolynomialDecay::factor(std::int64_t completed) const {
  assert(completed >= 0);
  if (completed >= total_steps) return minimum_factor;
  return along_line(minimum_factor, 1, std::pow(1 - ratio(completed, total_steps), power));
}

double InverseSqrtDecay::factor(std::int64_t completed) const {
  assert(completed >= 0);
  if (completed < warmup_steps) return along_line(start_factor, 1, ratio(completed, warmup_steps));
  return std::sqrt(ratio(warmup_steps, completed));
}

double CosineRestarts::factor(std::int64_t completed) const {
  assert(completed >= 0);
  // In double, as lengths that grow by a multiplier can leave the range of integers.
  auto length = static_cast<double>(period);
  auto position = static_cast<double>(completed);
  if (period_multiplier == 1) {
    position = std::fmod(position, length);
  } else {
    while (position >= length) {
      position -= length;
      length *= static_cast<double>(period_multiplier);
    }
  }
  return along_cosine(1, minimum_factor, position / length);
}

double OneCycle::factor(std::int64_t completed) const {
  assert(completed >= 0);
  const auto along = anneal == Anneal::cosine ? along_cosine : along_line;
  const auto step = static_cast<double>(completed);
  const auto last = static_cast<double>(total_steps - 1);
  const double top = warmup_fraction * static_cast<double>(total_steps) - 1;
  if (step >= last) return minimum_factor;
  if (step <= top) return along(start_factor, 1, step / top);
  if (!three_phase) return along(1, minimum_factor, (step - top) / (last - top));
  const double middle = 2 * top;
  if (step <= middle) return along(1, start_factor, (step - top) / top);
  return along(start_factor, minimum_factor, (step - middle) / (last - middle));
}

double WarmupStableDecay::factor(std::int64_t completed) const {
  assert(completed >= 0);
  if (completed < warmup_steps) return along_line(start_factor, 1, ratio(completed, warmup_steps));
  if (completed >= total_steps) return minimum_factor;
  const std::int64_t decaying = completed - (total_steps - decay_steps);
  if (decaying <= 0) return 1;
  const double x = ratio(decaying, decay_steps);
  switch (decay) {
    case Decay::linear:
      return along_line(1, minimum_factor, x);
    case Decay::cosine:
      return along_cosine(1, minimum_factor, x);
    case Decay::one_minus_sqrt:
      return along_line(1, minimum_factor, std::sqrt(x));
  }
  assert(false);
  return 1;
}

std::vector<std::string> problems(const MultiStepDecay& schedule) {
  Problems problems("MultiStepDecay");
  problems.need_gamma(schedule.gamma);
  const auto& milestones = schedule.milestones;
  if (milestones.empty()) {
    problems.add("milestones", "is empty: give the counts at which the rate drops.");
  } else if (milestones.front() < 1 || std::adjacent_find(milestones.begin(), milestones.end(),
                                                          std::greater_equal()) != milestones.end()) {
    problems.add("milestones", "is out of order: give ascending counts from 1 up, each once.");
  }
  return std::move(problems).found();
}

std::vector<std::string> problems(const ExponentialDecay& schedule) {
  Problems problems("ExponentialDecay");
  problems.need_gamma(schedule.gamma);
  return std::move(problems).found();
}

std::vector<std::string> problems(const PolynomialDecay& schedule) {
  Problems problems("PolynomialDecay");
  problems.need_total_steps(schedule.total_steps);
  if (!std::isfinite(schedule.power) || schedule.power <= 0) {
    problems.add("power", fmt::format("is {}: give a finite number above 0; 1 is a line.", schedule.power));
  }
  problems.need_factor("minimum_factor", schedule.minimum_factor);
  return std::move(problems).found();
}

std::vector<std::string> problems(const InverseSqrtDecay& schedule) {
  Problems problems("InverseSqrtDecay");
  problems.need_at_least_one("warmup_steps", schedule.warmup_steps);
  problems.need_factor("start_factor", schedule.start_factor);
  return std::move(problems).found();
}

std::vector<std::string> problems(const CosineRestarts& schedule) {
  Problems problems("CosineRestarts");
  problems.need_at_least_one("period", schedule.period);
  problems.need_at_least_one("period_multiplier", schedule.period_multiplier);
  problems.need_factor("minimum_factor", schedule.minimum_factor);
  return std::move(problems).found();
}

std::vector<std::string> problems(const OneCycle& schedule) {
  Problems problems("OneCycle");
  problems.need_total_steps(schedule.total_steps);
  const double fraction = schedule.warmup_fraction;
  const double largest = schedule.three_phase ? 0.5 : 1;
  if (!(fraction > 0 && fraction <= largest && fraction < 1)) {
    problems.add(
        "warmup_fraction",
        fmt::format("is {}: give a number above 0 and {}.", fraction,
                    schedule.three_phase ? "at most 0.5, as three phases rise and fall alike" : "below 1"));
  } else if (schedule.total_steps >= 1 && fraction * static_cast<double>(schedule.total_steps) <= 1) {
    problems.add(
        "warmup_fraction",
        fmt::format("is {} of {} total_steps, which leaves no step to rise in: make their product larger "
                    "than 1.",
                    fraction, schedule.total_steps));
  }
  problems.need_factor("start_factor", schedule.start_factor);
  problems.need_factor("minimum_factor", schedule.minimum_factor);
  return std::move(problems).found();
}

std::vector<std::string> problems(const WarmupStableDecay& schedule) {
  Problems problems("WarmupStableDecay");
  problems.need_total_steps(schedule.total_steps);
  problems.need_at_least_one("decay_steps", schedule.decay_steps);
  if (schedule.warmup_steps < 0) {
    problems.add("warmup_steps",
                 fmt::format("is {}: give 0 for no warm-up, or a positive number.", schedule.warmup_steps));
  } else if (schedule.total_steps >= 1 && schedule.decay_steps >= 1 &&
             schedule.warmup_steps > schedule.total_steps - schedule.decay_steps) {
    problems.add("warmup_steps",
                 fmt::format("is {} and decay_steps {}, more than the {} total_steps together: "
                             "shorten one of them.",
                             schedule.warmup_steps, schedule.decay_steps, schedule.total_steps));
  }
  problems.need_factor("start_factor", schedule.start_factor);
  problems.need_factor("minimum_factor", schedule.minimum_factor);
  if (schedule.warmup_steps == 0 && schedule.start_factor != 0) {
    problems.add("start_factor",
                 fmt::format("is {} but would be ignored, as warmup_steps is 0: set warmup_steps, or "
                             "leave start_factor out.",
                             schedule.start_factor));
  }
  return std::move(problems).found();
}

}  // namespace lockstep
