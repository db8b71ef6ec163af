#include "lockstep/ranks/fatal_error.hpp"

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/temporary_directory.hpp"

using namespace lockstep;
using nlohmann::json;

namespace {

/// What torchrun would find.
json reported(const std::exception& error) {
  const test::TemporaryDirectory folder;
  const auto file = folder.path() / "error.json";
  setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
  report_fatal_error(error);
  unsetenv("TORCHELASTIC_ERROR_FILE");
  return json::parse(test::read_text(file));
}

}  // namespace

CATCH_TEST_CASE("a fatal error is reported with its type, its text and the time") {
  const json report = reported(RankError("rank-lost", "rank 1 \"ended\"\nearly"));
  CATCH_CHECK(report["message"]["message"] == "lockstep::RankError: [rank-lost] rank 1 \"ended\"\nearly");
  CATCH_CHECK_FALSE(report["message"]["extraInfo"].contains("py_callstack"));
  const auto time = std::stoll(report["message"]["extraInfo"]["timestamp"].get<std::string>());
  CATCH_CHECK(std::abs(time - static_cast<long long>(std::time(nullptr))) < 100);
}

CATCH_TEST_CASE("a text that is no UTF-8 is reported all the same") {
  const json report = reported(std::runtime_error("bad byte \xff here"));
  CATCH_CHECK(report["message"]["message"] == "std::runtime_error: bad byte \xef\xbf\xbd here");
}

CATCH_TEST_CASE("a report that cannot be written is left out") {
  unsetenv("TORCHELASTIC_ERROR_FILE");
  report_fatal_error(std::runtime_error("nobody asked"));
  setenv("TORCHELASTIC_ERROR_FILE", "/no/such/folder/error.json", 1);
  report_fatal_error(std::runtime_error("nowhere to write"));
  unsetenv("TORCHELASTIC_ERROR_FILE");
  CATCH_CHECK_FALSE(std::filesystem::exists("/no/such/folder"));
}
