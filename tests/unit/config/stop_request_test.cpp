#include "lockstep/config/stop_request.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using lockstep::test::thrown_id;

namespace {

/// The wait status of a child process that runs `body` and then exits with 0.
int status_of_child(void (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    // The test runner's own handlers must not take part.
    for (const int number : {SIGINT, SIGTERM, SIGUSR1}) std::signal(number, SIG_DFL);
    body();
    _exit(0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

bool killed_by(int status, int number) { return WIFSIGNALED(status) && WTERMSIG(status) == number; }

}  // namespace

CATCH_TEST_CASE("the first reason for a stop stays") {
  StopRequest stop;
  CATCH_REQUIRE_FALSE(stop.reason().has_value());
  std::thread([&] { stop.request("out of time"); }).join();
  stop.request("again");
  CATCH_REQUIRE(stop.reason() == "out of time");
}

CATCH_TEST_CASE("a cleared request can be made anew") {
  StopRequest stop;
  stop.request("first");
  stop.clear();
  CATCH_REQUIRE_FALSE(stop.reason().has_value());
  stop.request("second");
  CATCH_REQUIRE(stop.reason() == "second");
}

CATCH_TEST_CASE("a caught signal becomes the reason by its name") {
  const auto [number, name] =
      GENERATE(table<int, const char*>({{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}}));
  StopRequest stop;
  auto scope = stop.catch_signals();
  CATCH_REQUIRE_FALSE(stop.reason().has_value());
  std::raise(number);
  CATCH_REQUIRE(stop.reason() == name);
}

CATCH_TEST_CASE("a reason given before the signal stays") {
  StopRequest stop;
  auto scope = stop.catch_signals();
  stop.request("out of time");
  std::raise(SIGINT);
  CATCH_REQUIRE(stop.reason() == "out of time");
}

CATCH_TEST_CASE("a signal is still known after its scope, and unknown to the next StopRequest") {
  StopRequest stop;
  {
    auto scope = stop.catch_signals();
    std::raise(SIGTERM);
  }
  CATCH_REQUIRE(stop.reason() == "SIGTERM");

  StopRequest next;
  auto scope = next.catch_signals();
  CATCH_REQUIRE_FALSE(next.reason().has_value());
}

CATCH_TEST_CASE("a cleared signal is forgotten and the next one counts as the first") {
  StopRequest stop;
  auto scope = stop.catch_signals();
  std::raise(SIGINT);
  stop.clear();
  CATCH_REQUIRE_FALSE(stop.reason().has_value());
  std::raise(SIGTERM);
  CATCH_REQUIRE(stop.reason() == "SIGTERM");
}

CATCH_TEST_CASE("the scope puts the former handlers back") {
  struct sigaction before = {};
  struct sigaction after = {};
  sigaction(SIGTERM, nullptr, &before);
  {
    StopRequest stop;
    auto scope = stop.catch_signals();
    sigaction(SIGTERM, nullptr, &after);
    CATCH_REQUIRE(after.sa_handler != before.sa_handler);
  }
  sigaction(SIGTERM, nullptr, &after);
  CATCH_REQUIRE(after.sa_handler == before.sa_handler);
  CATCH_REQUIRE(after.sa_flags == before.sa_flags);
}

CATCH_TEST_CASE("a second scope in the process is refused, and a later one is not") {
  StopRequest first;
  StopRequest second;
  {
    auto scope = first.catch_signals();
    CATCH_REQUIRE(thrown_id<ConfigError>([&] { auto other = second.catch_signals(); }) ==
                  "signals-already-caught");
  }
  auto scope = second.catch_signals();
}

CATCH_TEST_CASE("a second SIGINT or SIGTERM ends the process by its default action") {
  CATCH_REQUIRE(killed_by(status_of_child([] {
                            StopRequest stop;
                            auto scope = stop.catch_signals();
                            std::raise(SIGINT);
                            std::raise(SIGINT);
                          }),
                          SIGINT));
  CATCH_REQUIRE(killed_by(status_of_child([] {
                            StopRequest stop;
                            auto scope = stop.catch_signals();
                            std::raise(SIGINT);
                            std::raise(SIGTERM);
                          }),
                          SIGTERM));
}

CATCH_TEST_CASE("SIGUSR1 never ends the process, before or after another signal") {
  CATCH_REQUIRE(status_of_child([] {
                  StopRequest stop;
                  auto scope = stop.catch_signals();
                  for (const int number : {SIGUSR1, SIGUSR1, SIGTERM, SIGUSR1}) std::raise(number);
                  if (stop.reason() != "SIGUSR1") _exit(1);
                }) == 0);
}
