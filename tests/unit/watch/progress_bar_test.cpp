#include "watch/progress_bar.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/temporary_directory.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

// 120 of 860 updates in 10 seconds: 12 a second, 740 to go, 61.67 seconds left.
const Progress at_120 = {
    .plan = {.planned_steps = 860}, .step = 120, .seconds = 10, .values = {{"loss", 0.5312}}};

}  // namespace

CATCH_TEST_CASE("the line says how far the run is, how fast, how long still, and the loss") {
  CATCH_REQUIRE(progress_line(at_120, 80) ==
                " 13% [===>                   ]  120/860  12.0 updates/s  1:02 left  loss 0.5312");
}

CATCH_TEST_CASE("the line leaves the last column free") {
  const int width = GENERATE(60, 80, 81, 97);
  CATCH_REQUIRE(progress_line(at_120, width).size() == static_cast<std::size_t>(width - 1));
}

CATCH_TEST_CASE("a narrow terminal gets a shorter line, and none that wraps") {
  CATCH_REQUIRE(progress_line(at_120, 60) == " 13% [=>         ]  120/860  12.0/s  1:02 left  loss 0.5312");
  CATCH_REQUIRE(progress_line(at_120, 50) == " 13%  120/860  12.0/s  1:02 left  loss 0.5312");
  CATCH_REQUIRE(progress_line(at_120, 20) == " 13%  120/860  12.0");
  CATCH_REQUIRE(progress_line(at_120, 1).empty());
  CATCH_REQUIRE(progress_line(at_120, 0).empty());
}

CATCH_TEST_CASE("values are shown as far as there is room, the first ones first") {
  Progress progress = at_120;
  progress.values = {{"loss", 0.5312}, {"best/validation/loss", 0.41}, {"accuracy", 0.812}};
  CATCH_CHECK(progress_line(progress, 60) == " 13% [=>         ]  120/860  12.0/s  1:02 left  loss 0.5312");
  CATCH_CHECK(progress_line(progress, 80) == progress_line(at_120, 80));
  CATCH_CHECK(progress_line(progress, 90) ==
              " 13% [==>             ]  120/860  12.0 updates/s  1:02 left  loss 0.5312  accuracy 0.8120");
  CATCH_CHECK(progress_line(progress, 200) ==
              " 13% [=====>                                  ]  120/860  12.0 updates/s  1:02 left"
              "  loss 0.5312  best/validation/loss 0.4100  accuracy 0.8120");
}

CATCH_TEST_CASE("after a resume the rate counts the updates made since") {
  Progress progress = at_120;
  progress.plan.first_step = 100;
  CATCH_REQUIRE(progress_line(progress, 80).find("  2.0 updates/s  6:10 left") != std::string::npos);
}

CATCH_TEST_CASE("at the end the bar is full, and only then it says 100%") {
  Progress progress = at_120;
  progress.step = 859;
  CATCH_REQUIRE(progress_line(progress, 80).rfind(" 99% [", 0) == 0);
  progress.step = 860;
  CATCH_REQUIRE(progress_line(progress, 80).rfind("100% [=======================]  860/860", 0) == 0);
}

CATCH_TEST_CASE("before the first update there is neither a time left nor a loss") {
  CATCH_REQUIRE(progress_line({.plan = {.planned_steps = 10}}, 50) ==
                "  0% [>                                  ]   0/10");
}

CATCH_TEST_CASE("without a plan the line counts updates") {
  Progress progress = at_120;
  progress.plan = {};
  CATCH_REQUIRE(progress_line(progress, 80) == "step 120  12.0 updates/s  loss 0.5312");
}

CATCH_TEST_CASE("the bar is redrawn at most ten times a second") {
  const TemporaryDirectory directory;
  const auto path = directory.path() / "drawn";
  std::FILE* const file = std::fopen(path.c_str(), "w");
  CATCH_REQUIRE(file != nullptr);
  const auto start = std::chrono::steady_clock::now();
  {
    ProgressBar bar(fileno(file), {.planned_steps = 100000});
    for (std::int64_t step = 1; step <= 100000; ++step) bar.update(step);
  }
  const auto tenths = (std::chrono::steady_clock::now() - start) / std::chrono::milliseconds(100);
  std::fclose(file);

  const std::string drawn = read_text(path);
  const auto lines = std::count(drawn.begin(), drawn.end(), '%');
  CATCH_REQUIRE(lines >= 1);
  CATCH_REQUIRE(lines <= tenths + 1);
}

CATCH_TEST_CASE("what is no terminal shows no bar") {
  std::FILE* const file = std::tmpfile();
  CATCH_REQUIRE(file != nullptr);
  CATCH_REQUIRE_FALSE(can_show_progress_bar(fileno(file)));
  std::fclose(file);
}
