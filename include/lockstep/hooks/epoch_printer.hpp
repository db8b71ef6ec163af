// A line about each epoch.
#pragma once

#include <cstdint>

#include "lockstep/loop/hooks.hpp"

namespace lockstep {

/// Prints each epoch's means, its rates and what was evaluated at its end: `epoch 3  step 360  epoch/loss
/// 0.3100  ...`.
///
/// A RunLogger has lines about all of it too, one for each event; this is one line an epoch, with or without
/// a logger.
class EpochPrinter final : public Hook {
 public:
  void run_begin(Run& run) override;
  /// The epoch before is complete now, its evaluation included.
  void epoch_begin(Run& run) override { print(run); }
  void run_end(Run& run) override { print(run); }

 private:
  void print(Run& run);

  std::int64_t printed_ = 0;  // epochs
};

}  // namespace lockstep
