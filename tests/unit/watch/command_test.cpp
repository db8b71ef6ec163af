#include "watch/command.hpp"

#include <signal.h>

#include "support/catch.hpp"

using namespace lockstep;
using namespace std::chrono_literals;

CATCH_TEST_CASE("a program's output is returned, whatever its length") {
  CATCH_CHECK(captured_output({"printf", "%s %s", "a b", "c"}) == "a b c");
  const auto zeros = captured_output({"head", "-c", "300000", "/dev/zero"});
  CATCH_CHECK(zeros == std::string(300000, '\0'));
  CATCH_CHECK(captured_output({"sh", "-c", "printf \"$ADDED\""}, {"ADDED=here"}) == "here");
}

CATCH_TEST_CASE("a program that fails, or is not there, has no output") {
  CATCH_CHECK_FALSE(captured_output({"sh", "-c", "echo text; exit 3"}));
  CATCH_CHECK_FALSE(captured_output({"no-program-of-this-name"}));
}

CATCH_TEST_CASE("a program is not waited for longer than allowed, nor are its children") {
  CATCH_CHECK_FALSE(captured_output({"sleep", "1000"}, {}, {.time = 20ms}));
  CATCH_CHECK_FALSE(captured_output({"sh", "-c", "sleep 1000 & wait"}, {}, {.time = 20ms}));
  // It gives up its output, but does not end.
  CATCH_CHECK_FALSE(captured_output({"sh", "-c", "exec sleep 1000 >/dev/null"}, {}, {.time = 20ms}));
}

CATCH_TEST_CASE("a program that prints more than allowed is killed") {
  CATCH_CHECK_FALSE(captured_output({"yes"}, {}, {.output_bytes = 100000}));
}

CATCH_TEST_CASE("a program has no terminal to ask on") {
  CATCH_CHECK(captured_output({"sh", "-c", "(exec 3</dev/tty) 2>/dev/null || printf none"}) == "none");
  CATCH_CHECK(captured_output({"cat"}) == "");
}
