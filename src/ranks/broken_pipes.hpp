// What happens to a process that writes to a connection which its other end has closed.
#pragma once

#include <signal.h>

namespace lockstep {

/// Such a write ends a process by default. Threads that are made while this lives get an error instead: the
/// threads of Gloo and of the store, whose peers may be gone.
class BrokenPipesBlocked {
 public:
  BrokenPipesBlocked() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BrokenPipesBlocked() {
    const timespec no_time{};
    if (::sigismember(&before_, SIGPIPE) == 0) {
      while (::sigtimedwait(&pipe_, nullptr, &no_time) == SIGPIPE) continue;
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BrokenPipesBlocked(const BrokenPipesBlocked&) = delete;
  BrokenPipesBlocked& operator=(const BrokenPipesBlocked&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace lockstep
