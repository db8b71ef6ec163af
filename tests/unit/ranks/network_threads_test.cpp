#include "ranks/network_threads.hpp"

#include <unistd.h>

#include <cerrno>
#include <thread>

#include "support/catch.hpp"
#include "support/ranks.hpp"

using namespace lockstep;
using test::Rank;
using test::run_ranks;

namespace {

/// The error of a write that nobody can read.
int error_of_a_broken_pipe() {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  ::close(ends[0]);
  const auto written = ::write(ends[1], "x", 1);
  const int error = written < 0 ? errno : 0;
  ::close(ends[1]);
  return error;
}

bool blocks_pipe_signal() {
  sigset_t blocked;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &blocked);
  return ::sigismember(&blocked, SIGPIPE) == 1;
}

}  // namespace

CATCH_TEST_CASE("a write to a closed connection is an error and ends no process, then or later") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    ::signal(SIGPIPE, SIG_DFL);
    if (rank.number == 0) (void)error_of_a_broken_pipe();  // what happens without
    int error = 0;
    if (rank.number == 1) {
      const NoPipeSignal no_pipe_signal;
      error = error_of_a_broken_pipe();
    } else {
      std::thread thread;
      {
        const NetworkThreads network_threads;
        thread = std::thread([&] { error = error_of_a_broken_pipe(); });
      }
      thread.join();
    }
    return std::string(error == EPIPE ? "an error" : "none") + (blocks_pipe_signal() ? ", still blocked" : "");
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(WIFSIGNALED(ranks[0].status));
  CATCH_CHECK(WTERMSIG(ranks[0].status) == SIGPIPE);
  CATCH_CHECK(ranks[1].text == "an error");
  CATCH_CHECK(ranks[2].text == "an error");
}

CATCH_TEST_CASE("who has blocked SIGPIPE keeps it blocked, and what waits for him") {
  const auto ranks = run_ranks(1, [](Rank&) {
    sigset_t pipe;
    ::sigemptyset(&pipe);
    ::sigaddset(&pipe, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    (void)error_of_a_broken_pipe();
    { const NoPipeSignal no_pipe_signal; }
    const timespec no_time{};
    const bool waits = ::sigtimedwait(&pipe, nullptr, &no_time) == SIGPIPE;
    return std::string(waits ? "waits" : "is gone") + (blocks_pipe_signal() ? ", blocked" : ", not blocked");
  });
  CATCH_CHECK(ranks.same_text() == "waits, blocked");
}
