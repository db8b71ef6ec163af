#include "watch/git_state.hpp"

#include "support/catch.hpp"
#include "support/git_repository.hpp"
#include "support/temporary_directory.hpp"

using namespace lockstep;
using namespace lockstep::test;

CATCH_TEST_CASE("the commit and the changes since are told") {
  const TemporaryDirectory directory;
  make_git_repository(directory.path());
  const auto clean = git_state(directory.path());
  CATCH_REQUIRE(clean);
  CATCH_CHECK(clean->commit.size() == 40);
  CATCH_CHECK(clean->commit.find_first_not_of("0123456789abcdef") == std::string::npos);
  CATCH_CHECK(clean->diff == "");

  write_text(directory.path() / "file", "two\n");
  const auto changed = git_state(directory.path());
  CATCH_REQUIRE(changed);
  CATCH_CHECK(changed->commit == clean->commit);
  CATCH_REQUIRE(changed->diff);
  CATCH_CHECK(changed->diff->find("\n-one\n+two\n") != std::string::npos);
}

CATCH_TEST_CASE("programs that the repository's settings name are not run") {
  const TemporaryDirectory directory;
  make_git_repository(directory.path());
  const auto ran = directory.path() / "ran";
  const std::string command = "cd '" + directory.path().string() + "' && for name in core.fsmonitor " +
                              "diff.external core.pager; do git config $name 'touch ran; cat'; done";
  CATCH_REQUIRE(std::system(command.c_str()) == 0);
  write_text(directory.path() / "file", "two\n");
  CATCH_CHECK(git_state(directory.path()));
  CATCH_CHECK_FALSE(std::filesystem::exists(ran));
}

CATCH_TEST_CASE("outside a repository there is nothing to tell") {
  const TemporaryDirectory directory;
  CATCH_CHECK_FALSE(git_state(directory.path()));
  CATCH_CHECK_FALSE(git_state(directory.path() / "absent"));
}
