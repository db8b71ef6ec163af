// One rank's part of the data.
#pragma once

#include <cstdint>

namespace lockstep {

/// Which rank reads, and of how many.
struct Shard {
  int rank = 0;
  int ranks = 1;
  /// Follow `even_batches`. Evaluation does not: it counts each sample once.
  bool pad = true;

  bool operator==(const Shard&) const = default;
};

/// How many of `batches` in a row the shard's rank reads if they go to the ranks in turn, to rank 0 first.
[[nodiscard]] constexpr std::int64_t dealt_batches(std::int64_t batches, const Shard& shard) {
  return (batches + shard.ranks - 1 - shard.rank) / shard.ranks;
}

}  // namespace lockstep
