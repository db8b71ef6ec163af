#include "lockstep/config/save_request.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <thread>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using lockstep::test::thrown_id;

CATCH_TEST_CASE("a request for a save is taken once, however often it was made") {
  SaveRequest save;
  CATCH_CHECK_FALSE(save.take());
  std::thread([&] { save.request(); }).join();
  save.request();
  CATCH_CHECK(save.take());
  CATCH_CHECK_FALSE(save.take());
  save.request();
  CATCH_CHECK(save.take());
}

CATCH_TEST_CASE("SIGUSR2 asks for a save while it is caught, and what was caught stays") {
  SaveRequest save;
  {
    const auto scope = save.catch_signal();
    std::raise(SIGUSR2);
    std::raise(SIGUSR2);
    CATCH_CHECK(save.take());
    CATCH_CHECK_FALSE(save.take());
    std::raise(SIGUSR2);
  }
  CATCH_CHECK(save.take());
  CATCH_CHECK_FALSE(save.take());

  SaveRequest other;
  const auto scope = other.catch_signal();
  CATCH_CHECK_FALSE(other.take());
}

CATCH_TEST_CASE("a signal is not a request of a SaveRequest that catches none") {
  SaveRequest catching;
  SaveRequest other;
  const auto scope = catching.catch_signal();
  std::raise(SIGUSR2);
  CATCH_CHECK_FALSE(other.take());
  CATCH_CHECK(catching.take());
}

CATCH_TEST_CASE("SIGUSR2 has its former action again after the scope") {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGUSR2, SIG_DFL);
    SaveRequest save;
    { const auto scope = save.catch_signal(); }
    std::raise(SIGUSR2);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CATCH_CHECK(WIFSIGNALED(status));
  CATCH_CHECK(WTERMSIG(status) == SIGUSR2);
}

CATCH_TEST_CASE("one scope at a time catches SIGUSR2: save-signal-already-caught") {
  SaveRequest first;
  SaveRequest second;
  {
    const auto scope = first.catch_signal();
    CATCH_CHECK(thrown_id<ConfigError>([&] { (void)second.catch_signal(); }) == "save-signal-already-caught");
  }
  CATCH_CHECK_NOTHROW((void)second.catch_signal());
}
