// Scripts that compare what is written here with what Python's packages make of it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/catch.hpp"

namespace lockstep::test {

/// Runs tests/support/`script` with these arguments; it must exit with 0.
inline void run_python(const std::string& script, const std::string& arguments) {
  const char* python = std::getenv("LOCKSTEP_TEST_PYTHON");
  if (python == nullptr)
    CATCH_FAIL("LOCKSTEP_TEST_PYTHON must name a Python with the tests' packages; tests/run.sh sets it");
  const auto path = std::filesystem::path(__FILE__).parent_path() / script;
  const std::string command = std::string("'") + python + "' '" + path.string() + "' " + arguments;
  CATCH_INFO("the output above says what " << command << " missed");
  CATCH_REQUIRE(std::system(command.c_str()) == 0);
}

}  // namespace lockstep::test
