#include "cli/prefixed_lines.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::cli {
namespace {

/// A line longer than this is cut, since it has to be kept until it ends.
constexpr std::size_t longest_line = 1 << 20;

}  // namespace

void write_whole(int output, std::string_view text) {
  while (!text.empty()) {
    const auto written = write(output, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{output, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

void PrefixedLines::add(std::string_view text, Clock::time_point now) {
  for (const char character : text) {
    if (drawn_over_ && character != '\n') {
      if (line_.empty() || now < last_drawn_ + std::chrono::seconds(1)) {
        line_.clear();
      } else {
        last_drawn_ = now;
        take_line();
      }
    }
    drawn_over_ = character == '\r';
    if (character == '\n') {
      take_line();
    } else if (character != '\r') {
      line_ += character;
      if (line_.size() == longest_line) take_line();
    }
  }
  flush();
}

void PrefixedLines::end() {
  if (!line_.empty()) take_line();
  flush();
}

void PrefixedLines::take_line() {
  whole_ += prefix_ + line_ + '\n';
  line_.clear();
}

void PrefixedLines::flush() {
  write_whole(output_, whole_);
  whole_.clear();
}

}  // namespace lockstep::cli
