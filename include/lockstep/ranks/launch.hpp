// Who this process is among the ranks of a run, as its launcher says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace lockstep {

/// What a program may say itself instead of its launcher.
struct LaunchOptions {
  std::optional<int> rank = {};
  std::optional<int> world_size = {};
  std::optional<int> local_rank = {};
  /// Where the ranks meet: "host:port", reachable from all of them, where rank 0 listens; or "file:///path" of a file
  /// that does not exist yet, in a folder that all of them see.
  std::optional<std::string> meeting_point = {};

  bool operator==(const LaunchOptions&) const = default;
};

/// One rank of a run.
struct Launch {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  ///< among the ranks of this machine
  int local_size = 1;
  std::string host = {};  ///< where rank 0 listens; empty: they meet at `file`
  int port = 0;
  std::string file = {};
  /// The launcher listens there itself, so rank 0 must not.
  bool listened_to = false;
  /// Of a run that its launcher has started anew, so that its ranks never meet leftovers of the last start.
  int restart = 0;
  /// "torchrun", "Open MPI", "SLURM", ... or "none"; for messages.
  std::string launcher = "none";

  bool operator==(const Launch&) const = default;
};

}  // namespace lockstep
