// What several processes print, in one output.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace lockstep::cli {

/// Writes the lines of one stream of one rank with "[rank] " in front, each whole.
///
/// A progress bar ends its lines with a carriage return and draws over them. What would have been drawn over
/// is written once a second, as a line of its own.
class PrefixedLines {
 public:
  using Clock = std::chrono::steady_clock;

  PrefixedLines(int rank, int output) : prefix_("[" + std::to_string(rank) + "] "), output_(output) {}

  void add(std::string_view text, Clock::time_point now = Clock::now());
  /// Writes what is left of a last line without its end.
  void end();

 private:
  void take_line();
  void flush();

  std::string prefix_;
  int output_;
  std::string line_;
  bool drawn_over_ = false;  ///< unless the line's end follows
  Clock::time_point last_drawn_ = Clock::time_point::min();
  std::string whole_;  ///< lines that are not written yet
};

/// What cannot be written is dropped: a run does not end because nobody reads its output any more.
void write_whole(int output, std::string_view text);

}  // namespace lockstep::cli
