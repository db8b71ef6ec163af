// A terminal that a child process writes to, and what a person would see on it.
#pragma once

#include <pty.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::test {

class Terminal {
 public:
  /// Runs `body` in a child of this process with the terminal, `width` columns wide, as its standard streams.
  /// CI and NO_COLOR are unset in it. It must not use Catch2.
  Terminal(unsigned short width, auto&& body) {
    const winsize size = {.ws_row = 24, .ws_col = width, .ws_xpixel = 0, .ws_ypixel = 0};
    int master = -1;
    const pid_t child = forkpty(&master, nullptr, nullptr, &size);
    if (child < 0) throw std::runtime_error("no terminal");
    if (child == 0) {
      setenv("TERM", "xterm", 1);
      unsetenv("CI");
      unsetenv("NO_COLOR");
      int code = 1;
      try {
        body();
        code = 0;
      } catch (...) {
      }
      _exit(code);
    }
    char bytes[4096];
    for (ssize_t count; (count = ::read(master, bytes, sizeof bytes)) > 0;)
      output_.append(bytes, bytes + count);
    ::close(master);
    ::waitpid(child, &status_, 0);
  }

  /// Every byte that was written.
  [[nodiscard]] const std::string& output() const { return output_; }
  /// Minus one if the child did not exit by itself.
  [[nodiscard]] int exit_code() const { return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1; }

  /// The lines as they stand at the end, the one with the cursor last. Knows carriage return, line feed and
  /// erase to the end of the line, and leaves out other control sequences.
  [[nodiscard]] std::vector<std::string> screen() const {
    std::vector<std::string> lines(1);
    std::size_t column = 0;
    for (std::size_t i = 0; i < output_.size(); ++i) {
      std::string& line = lines.back();
      if (output_[i] == '\r') {
        column = 0;
      } else if (output_[i] == '\n') {
        lines.emplace_back();
        column = 0;
      } else if (output_[i] == '\x1b') {
        i = output_.find_first_not_of("[0123456789;", i + 1);
        if (output_.at(i) == 'K') line.resize(column);
      } else {
        if (line.size() <= column) line.resize(column + 1, ' ');
        line[column++] = output_[i];
      }
    }
    return lines;
  }

 private:
  std::string output_;
  int status_ = -1;
};

}  // namespace lockstep::test
