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
  /// Where the ranks meet: "host:port", reachable from all of them, where rank 0 listens; or "file:///path" of
  /// a file that does not exist yet, in a folder that all of them see.
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
  /// What rank 0 should tell the user about how the run was started; empty: nothing.
  std::string warning = {};

  bool operator==(const Launch&) const = default;
};

/// The value of a variable; nothing where it is not set.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

/// That of this process.
[[nodiscard]] std::optional<std::string> process_environment(const std::string& name);

/// Each field comes from `options`, else from the variables of the first launcher that is there: RANK and
/// WORLD_SIZE (torchrun, `lockstep launch`, a shell), Open MPI, MPICH and others with its process manager,
/// MVAPICH2, SLURM. Without any, this is the only rank. An empty variable counts as unset.
///
/// SLURM's variables count where SLURM_NTASKS is set and the job is none that a person works in, called
/// "bash" or "interactive". Ranks meet at MASTER_ADDR and MASTER_PORT where these are set; else at 127.0.0.1
/// if all are on this machine, or on the first host of SLURM's list. A shell that sets neither LOCAL_RANK nor
/// LOCAL_WORLD_SIZE means one machine. A program that says it is rank 0 of 1, and no more, asks no launcher.
///
/// Errors: ConfigError `invalid-launch`, with everything that is missing, malformed or contradictory.
[[nodiscard]] Launch find_launch(const LaunchOptions& options = {},
                                 const Environment& environment = process_environment);

}  // namespace lockstep
