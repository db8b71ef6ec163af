// The settings of a DataLoader.
#pragma once

#include <cstdint>

namespace lockstep {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;    ///< a new order every epoch
  std::uint64_t seed = 0;  ///< of the order and of the sample seeds
  int workers = 0;         ///< threads that load ahead; 0 loads when a batch is asked for
  bool drop_last = false;  ///< leave out a last batch that is not full
  /// gather or collate into page-locked memory, from where a batch goes to CUDA without a copy on the way
  bool pin_memory = false;
  /// Go on with the epoch's first samples, which then count again, until all ranks have the same number of
  /// full batches; with drop_last, leave out what would need them. Unset: every sample once, ranks may be
  /// uneven.
  bool even_batches = false;
  /// batch_size is that of all ranks together, a multiple of their number; each takes its part of every
  /// batch.
  bool split_batches = false;

  bool operator==(const DataLoaderOptions&) const = default;
};

}  // namespace lockstep
