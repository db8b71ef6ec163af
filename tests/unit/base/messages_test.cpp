#include "lockstep/base/messages.hpp"

#include <string>

#include "support/catch.hpp"

using namespace lockstep;

CATCH_TEST_CASE("an error's text starts with its id") {
  const ConfigError error = message::invalid_interval("2 days");
  CATCH_REQUIRE(error.id() == "invalid-interval");
  CATCH_REQUIRE(std::string(error.what()).rfind("[invalid-interval] \"2 days\" is not", 0) == 0);
}

CATCH_TEST_CASE("mistakes in settings are listed one a line") {
  const ConfigError error = message::invalid_settings({"first.", "second."});
  CATCH_REQUIRE(std::string(error.what()) ==
                "[invalid-settings] the settings cannot work:\n  - first.\n  - second.");
}
