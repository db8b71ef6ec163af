// How ranks agree. One process agrees with itself.
#pragma once

#include <cstdint>

namespace lockstep {

/// Where in a run the ranks meet.
enum class Phase { window, run_end };

/// What a rank brings to a phase, and what all of them decided: flags are or-ed, counts are summed.
struct Vote {
  Phase phase = Phase::window;
  bool stop = false;            ///< a stop was requested
  std::int64_t samples = 0;     ///< the window's denominator
};

/// Every rank calls the same members in the same order.
class Collectives {
 public:
  virtual ~Collectives() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  [[nodiscard]] virtual Vote vote(const Vote& mine) = 0;
};

class SingleProcess final : public Collectives {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 1; }
  [[nodiscard]] Vote vote(const Vote& mine) override { return mine; }
};

}  // namespace lockstep
