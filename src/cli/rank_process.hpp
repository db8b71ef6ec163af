// One rank as a process that was started here.
#pragma once

#include <sys/types.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "cli/prefixed_lines.hpp"

namespace lockstep::cli {

/// How a process ended.
struct Ending {
  int code = 0;    ///< 128 and the signal where one killed it, as in a shell
  int signal = 0;  ///< 0: none
};

/// The process leads a group of its own, so that Ctrl-C on a terminal reaches the launcher alone; it gets
/// SIGKILL when the launcher dies. With the object the whole group is killed.
class RankProcess {
 public:
  /// `environment`: entries "NAME=value", all that the process gets. Throws std::system_error if the program
  /// cannot be started.
  RankProcess(int rank, const std::vector<std::string>& program, const std::vector<std::string>& environment);
  ~RankProcess();
  RankProcess(RankProcess&&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  /// Sees whether the process has ended since; true only once.
  [[nodiscard]] bool has_just_ended();
  [[nodiscard]] const std::optional<Ending>& ending() const { return ending_; }
  /// To the process alone, which may have its own way to stop what it has started.
  void send(int signal) const;
  void kill_group() const;

  struct Stream {
    FileDescriptor from;  ///< closed once the process has closed it
    PrefixedLines lines;
  };
  [[nodiscard]] std::array<Stream, 2>& streams() { return streams_; }

 private:
  int rank_;
  pid_t id_ = -1;
  std::optional<Ending> ending_;
  std::array<Stream, 2> streams_;
};

/// Hands on some of what there is to read, without waiting.
void pass_on(RankProcess::Stream& stream);

}  // namespace lockstep::cli
