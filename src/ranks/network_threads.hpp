// What the threads of Gloo and of the store are like.
#pragma once

#include <sched.h>
#include <signal.h>

namespace lockstep {

/// Threads that are made while this lives are those of the network, as far as they take after the one that makes them:
///
/// - A write to a connection that its other end has closed is an error, instead of the end of the process.
/// - When a message comes they wait for a core that is free, or for their turn. Else they interrupt the rank that
///   computes, in the middle of its own write say: that holds a lock which Gloo's thread then spins for on another core.
class NetworkThreads {
 public:
  NetworkThreads() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    if (ordinary_) ::sched_setscheduler(0, SCHED_BATCH, &no_priority);
  }
  ~NetworkThreads() {
    if (ordinary_) ::sched_setscheduler(0, SCHED_OTHER, &no_priority);
    const timespec no_time{};
    if (::sigismember(&before_, SIGPIPE) == 0) {
      while (::sigtimedwait(&pipe_, nullptr, &no_time) == SIGPIPE) continue;
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NetworkThreads(const NetworkThreads&) = delete;
  NetworkThreads& operator=(const NetworkThreads&) = delete;

 private:
  static constexpr sched_param no_priority{};

  sigset_t pipe_{};
  sigset_t before_{};
  bool ordinary_ = ::sched_getscheduler(0) == SCHED_OTHER;  // else the user has chosen
};

}  // namespace lockstep
