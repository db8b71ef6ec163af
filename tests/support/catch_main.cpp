// The main program of every test executable: Catch2, compiled once and without Torch. A run without a test case and a
// test case without an assertion are failures, and [#file] selects the test cases of a source file.
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

int main(int argc, char** argv) {
  Catch::Session session;
  session.configData().filenamesAsTags = true;
#if CATCH_VERSION_MAJOR == 2
  session.configData().warnings =
      static_cast<Catch::WarnAbout::What>(Catch::WarnAbout::NoAssertions | Catch::WarnAbout::NoTests);
#else  // a run without a test case fails by itself
  session.configData().warnings = Catch::WarnAbout::NoAssertions;
#endif
  return session.run(argc, argv);
}
