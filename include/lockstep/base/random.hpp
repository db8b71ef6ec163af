// Random numbers that are a function of their seed alone: the same on every platform and in every thread.
//
// Source: SplitMix64, from Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014),
// with the constants of Vigna's public-domain version.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>

namespace lockstep {

/// A small generator for one sample's augmentation: `SampleRandom random(sample_seed);`.
/// Holds eight bytes and is cheap to construct. Not for cryptography.
class SampleRandom {
 public:
  explicit constexpr SampleRandom(std::uint64_t seed) : state_(seed) {}

  /// 64 random bits.
  constexpr std::uint64_t next() {
    state_ += 0x9E3779B97F4A7C15u;
    std::uint64_t bits = state_;
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    return bits ^ (bits >> 31);
  }

  /// A multiple of 2^-53 in [0, 1).
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  /// A whole number in [low, high), each equally likely. `low` must be below `high`.
  constexpr std::int64_t uniform_int(std::int64_t low, std::int64_t high) {
    assert(low < high);
    const auto range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    // The 2^64 mod range smallest draws would favour some residues.
    const std::uint64_t biased = (0 - range) % range;
    std::uint64_t bits = next();
    while (bits < biased) bits = next();
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + bits % range);
  }

  /// A number from the standard normal distribution (Marsaglia's polar method). The last bit follows the
  /// platform's `std::log`.
  double normal() {
    for (;;) {
      const double x = 2 * uniform() - 1;
      const double y = 2 * uniform() - 1;
      const double square = x * x + y * y;
      if (square > 0 && square < 1) return x * std::sqrt(-2 * std::log(square) / square);
    }
  }

 private:
  std::uint64_t state_;
};

/// The seed of sample `index` in `epoch`. For one seed and epoch, no two indices share theirs.
constexpr std::uint64_t mix(std::uint64_t seed, std::int64_t epoch, std::int64_t index) {
  const std::uint64_t epoch_seed =
      SampleRandom(SampleRandom(seed).next() ^ static_cast<std::uint64_t>(epoch)).next();
  return SampleRandom(epoch_seed ^ static_cast<std::uint64_t>(index)).next();
}

}  // namespace lockstep
