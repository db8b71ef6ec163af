#include "config/debug_variable.hpp"

#include <cstdlib>
#include <string>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("LOCKSTEP_DEBUG is on for 1, true and on, off for 0 and nothing, and refused for anything else") {
  CATCH_CHECK_FALSE(debug_variable());
  for (const std::string text : {"1", "true", "on", "0", "", "yes", "2", "TRUE"}) {
    CATCH_CAPTURE(text);
    ::setenv("LOCKSTEP_DEBUG", text.c_str(), 1);
    std::string id;
    bool on = false;
    try {
      on = debug_variable();
    } catch (const ConfigError& error) {
      id = error.id();
    }
    CATCH_CHECK(on == (text == "1" || text == "true" || text == "on"));
    CATCH_CHECK(id == (text == "yes" || text == "2" || text == "TRUE" ? "invalid-debug-variable" : ""));
  }
  ::unsetenv("LOCKSTEP_DEBUG");
}
