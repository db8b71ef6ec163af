// Schedules that are functions of a count alone, besides WarmupDecay.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

// Each gives a multiplier of the base learning rate from a count t of completed updates, or of completed
// epochs where the scheduler's Interval says so; the first update uses factor(0). "steps" in a field's name
// are such counts. factor() needs settings in which problems() finds nothing, and t not negative.

/// gamma^(number of milestones <= t): a drop by gamma at each milestone. Torch: MultiStepLR, StepLR.
struct MultiStepDecay {
  std::vector<std::int64_t> milestones = {};  ///< ascending, from 1 up
  double gamma = 0.1;

  [[nodiscard]] double factor(std::int64_t completed) const;
  bool operator==(const MultiStepDecay&) const = default;
};

/// gamma^t. Torch: ExponentialLR.
struct ExponentialDecay {
  double gamma = 0;  ///< above 0, at most 1

  [[nodiscard]] double factor(std::int64_t completed) const;
  bool operator==(const ExponentialDecay&) const = default;
};

/// minimum_factor + (1 - minimum_factor) * (1 - t/total_steps)^power, and minimum_factor from total_steps on.
/// Torch: PolynomialLR, which has no minimum.
struct PolynomialDecay {
  std::int64_t total_steps = 0;
  double power = 1;
  double minimum_factor = 0;

  [[nodiscard]] double factor(std::int64_t completed) const;
  bool operator==(const PolynomialDecay&) const = default;
};

/// The line from start_factor at 0 to 1 at warmup_steps, then sqrt(warmup_steps / t).
///
/// Source: Vaswani et al., "Attention is all you need" (2017), section 5.3, with the peak as the base rate.
struct InverseSqrtDecay {
  std::int64_t warmup_steps = 0;  ///< at least 1
  double start_factor = 0;

  [[nodiscard]] double factor(std::int64_t completed) const;
  bool operator==(const InverseSqrtDecay&) const = default;
};

/// Half a cosine from 1 to minimum_factor, over and over, each period period_multiplier times as long as the
/// last: minimum_factor + (1 - minimum_factor) * (1 + cos(pi * t'/T)) / 2, where t' counts from the start of
/// a period of T.
///
/// Torch: CosineAnnealingWarmRestarts. Source: Loshchilov and Hutter, "SGDR" (2017).
struct CosineRestarts {
  std::int64_t period = 0;  ///< steps in the first period
  std::int64_t period_multiplier = 1;
  double minimum_factor = 0;

  [[nodiscard]] double factor(std::int64_t completed) const;
  bool operator==(const CosineRestarts&) const = default;
};

/// One rise from start_factor to 1 over the first warmup_fraction of the steps, then one descent to
/// minimum_factor at step total_steps - 1, the last one. In three phases the descent first mirrors the rise,
/// down to start_factor.
///
/// Torch: OneCycleLR with max_lr as the base rate, pct_start as warmup_fraction, start_factor = 1/div_factor
/// and minimum_factor = start_factor/final_div_factor; momentum is not cycled. Source: Smith and Topin,
/// "Super-convergence" (2018).
struct OneCycle {
  enum class Anneal { cosine, linear };

  std::int64_t total_steps = 0;
  double warmup_fraction = 0.3;  ///< the rise ends at step warmup_fraction * total_steps - 1
  double start_factor = 1.0 / 25;
  double minimum_factor = 1.0 / 25e4;
  Anneal anneal = Anneal::cosine;
  bool three_phase = false;

  [[nodiscard]] double factor(std::int64_t completed) const;
  bool operator==(const OneCycle&) const = default;
};

/// The line from start_factor at 0 to 1 at warmup_steps; 1 until decay_steps before the end; then, with x
/// from 0 to 1 over the decay, minimum_factor + (1 - minimum_factor) * d(x), where d is 1 - x, (1 + cos(pi *
/// x)) / 2, or 1 - sqrt(x).
///
/// Source: Hu et al., "MiniCPM" (2024); 1 - sqrt from Hägele et al., "Scaling laws and compute-optimal
/// training beyond fixed training durations" (2024).
struct WarmupStableDecay {
  enum class Decay { linear, cosine, one_minus_sqrt };

  std::int64_t total_steps = 0;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  ///< at least 1
  double start_factor = 0;
  double minimum_factor = 0;
  Decay decay = Decay::linear;

  [[nodiscard]] double factor(std::int64_t completed) const;
  bool operator==(const WarmupStableDecay&) const = default;
};

/// Every mistake in the settings, each a sentence with its remedy; empty if there is none.
std::vector<std::string> problems(const MultiStepDecay& schedule);
std::vector<std::string> problems(const ExponentialDecay& schedule);
std::vector<std::string> problems(const PolynomialDecay& schedule);
std::vector<std::string> problems(const InverseSqrtDecay& schedule);
std::vector<std::string> problems(const CosineRestarts& schedule);
std::vector<std::string> problems(const OneCycle& schedule);
std::vector<std::string> problems(const WarmupStableDecay& schedule);

}  // namespace lockstep
