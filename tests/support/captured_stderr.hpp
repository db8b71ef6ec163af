// What a piece of code writes to standard error.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

namespace lockstep::test {

/// Standard error while `call` runs, an exception's way out included.
inline std::string captured_stderr(auto&& call) {
  struct Redirection {
    Redirection() : file(std::tmpfile()), before(::dup(STDERR_FILENO)) {
      ::dup2(::fileno(file), STDERR_FILENO);
    }
    ~Redirection() {
      restore();
      std::fclose(file);
    }
    void restore() {
      if (before < 0) return;
      ::dup2(before, STDERR_FILENO);
      ::close(before);
      before = -1;
    }
    std::FILE* file;
    int before;
  };
  Redirection redirection;
  call();
  redirection.restore();
  std::string text;
  std::rewind(redirection.file);
  for (int byte; (byte = std::fgetc(redirection.file)) != EOF;) text.push_back(static_cast<char>(byte));
  return text;
}

}  // namespace lockstep::test
