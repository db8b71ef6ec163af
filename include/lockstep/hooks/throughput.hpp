// How fast a run is, for people.
#pragma once

#include <cstdint>

#include "lockstep/loop/hooks.hpp"
#include "lockstep/watch/performance_meter.hpp"

namespace lockstep {

/// Prints updates and samples per second over all ranks, and the memory of the main process, every `every`
/// updates.
///
/// The `train` events of a RunLogger have all of that and the split of the time; this is for programs without
/// one. Errors: ConfigError `invalid-settings`.
class Throughput final : public Hook {
 public:
  explicit Throughput(std::int64_t every = 100);

  void run_begin(Run& run) override;
  void after_update(Run& run, const UpdateOutcome& outcome) override;

 private:
  std::int64_t every_;
  PerformanceMeter meter_;
};

}  // namespace lockstep
