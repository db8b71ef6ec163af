// How threads of a process write to the network.
#pragma once

#include <sched.h>
#include <signal.h>

namespace lockstep {

/// While this lives, a write of this thread to a connection that its other end has closed is an error, instead of the end
/// of the process. Gloo writes on the thread that calls it where it can, and on its own ones.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    if (::sigismember(&before_, SIGPIPE) != 0) return;
    const timespec no_time{};
    while (::sigtimedwait(&pipe_, nullptr, &no_time) == SIGPIPE) continue;
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

/// Threads that are made while this lives are those of the network, as far as they take after the one that makes them:
///
/// - They have no SIGPIPE.
/// - When a message comes they wait for a core that is free, or for their turn. Else they interrupt the rank that
///   computes, in the middle of its own write say: that holds a lock which Gloo's thread then spins for on another core.
class NetworkThreads {
 public:
  NetworkThreads() {
    if (ordinary_) ::sched_setscheduler(0, SCHED_BATCH, &no_priority);
  }
  ~NetworkThreads() {
    if (ordinary_) ::sched_setscheduler(0, SCHED_OTHER, &no_priority);
  }
  NetworkThreads(const NetworkThreads&) = delete;
  NetworkThreads& operator=(const NetworkThreads&) = delete;

 private:
  static constexpr sched_param no_priority{};

  NoPipeSignal no_pipe_signal_;
  bool ordinary_ = ::sched_getscheduler(0) == SCHED_OTHER;  // else the user has chosen
};

}  // namespace lockstep
