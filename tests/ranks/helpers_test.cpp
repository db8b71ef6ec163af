// What an Accelerator offers programs of several ranks besides training.
#include "support/catch.hpp"
#include "support/process_group.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::Rank;
using test::run_ranks;
using test::text_of;

namespace {

/// What `print` writes to standard output.
std::string printed(const std::filesystem::path& file, const std::function<void()>& print) {
  const int before = ::dup(STDOUT_FILENO);
  const int output = ::open(file.c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
  ::dup2(output, STDOUT_FILENO);
  print();
  std::cout.flush();
  ::dup2(before, STDOUT_FILENO);
  ::close(output);
  ::close(before);
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

}  // namespace

CATCH_TEST_CASE("numbers and tensors are gathered in rank order") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const Accelerator accelerator(rank.options());
    const double number = rank.number + 0.5;
    std::string text;
    for (const double value : accelerator.gather(number)) text += std::to_string(value).substr(0, 3) + " ";
    // Rank r has r rows, so that rank 0 has none.
    const auto rows = torch::full({rank.number, 2}, rank.number, torch::kInt);
    const auto gathered = accelerator.gather(rows);
    text += c10::toString(gathered.scalar_type()) + (" " + std::to_string(gathered.size(0))) + ": " +
            text_of(gathered);
    text += "; " + text_of(accelerator.gather(torch::tensor(rank.number == 1)));
    const auto columns = torch::arange(4, torch::kDouble).view({2, 2}).t() + 10 * rank.number;
    return text + "; " + text_of(accelerator.gather(columns));
  });
  CATCH_CHECK(ranks.same_text() == "0.5 1.5 2.5 Int 3: 1 1 2 2 2 2; 0 1 0; 0 2 1 3 10 12 11 13 20 22 21 23");
}

CATCH_TEST_CASE("numbers and tensors are summed or averaged, and stay as they are") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const Accelerator accelerator(rank.options());
    const auto mine = torch::tensor({1, 2}) * (rank.number + 1);
    const auto weights = torch::full({2}, 0.5 + rank.number, torch::requires_grad().dtype(torch::kDouble));
    const auto sum = accelerator.reduce(mine);
    const auto mean = accelerator.reduce(mine, Reduction::mean);
    const auto of_weights = accelerator.reduce(weights.view({2, 1}).t());
    const bool unchanged = torch::equal(mine, torch::tensor({1, 2}) * (rank.number + 1));
    return text_of(sum) + "; " + text_of(mean) + "; " + text_of(of_weights) +
           (of_weights.requires_grad() ? " grad" : "") + (unchanged ? "; " : " changed; ") +
           std::to_string(accelerator.reduce(0.25 * (rank.number + 1))) + " " +
           std::to_string(accelerator.reduce(0.25 * (rank.number + 1), Reduction::mean));
  });
  CATCH_CHECK(ranks.same_text() == "3 6; 1.5 3; 2 2; 0.750000 0.375000");
}

CATCH_TEST_CASE("a mean over ranks counts every term once") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const Accelerator accelerator(rank.options());
    // Three terms that sum to 6 here and one of 10 there; the mean of the means would be 6.
    const double mean = rank.number == 0 ? accelerator.reduce_mean(6, 3) : accelerator.reduce_mean(10, 1);
    // Beyond what 32 bits hold.
    const double large = accelerator.reduce_mean(rank.number == 0 ? 16777217 : 0, rank.number == 0 ? 1 : 0);
    const double nothing = accelerator.reduce_mean(0, 0);
    return std::to_string(mean) + " " + std::to_string(large) + (std::isnan(nothing) ? " NaN" : " a number");
  });
  CATCH_CHECK(ranks.same_text() == "4.000000 16777217.000000 NaN");
}

CATCH_TEST_CASE("tensors that do not fit together are an error on all ranks, with the tensor of each") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const Accelerator accelerator(rank.options());
    const auto rows = torch::zeros({3, 2 + rank.number});
    const auto gathered = test::thrown_id<RankError>([&] { (void)accelerator.gather(rows); });
    const auto counts = torch::zeros({2}, rank.number == 0 ? torch::kInt : torch::kLong);
    try {
      (void)accelerator.reduce(counts);
    } catch (const RankError& error) {
      return gathered + " " + error.what() + text_of(accelerator.reduce(torch::ones({1})));
    }
    return std::string("unnoticed");
  });
  CATCH_CHECK_THAT(ranks.same_text(), Contains("tensors-differ [tensors-differ]") &&
                                          Contains("rank 0: Int 2\n") && Contains("rank 1: Long 2\n"));
}

CATCH_TEST_CASE("the main process goes first") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const Accelerator accelerator(rank.options());
    const auto file = rank.directory / "prepared";
    std::string text;
    accelerator.main_process_first([&] {
      text = std::filesystem::exists(file) ? "found" : "prepared";
      if (rank.number == 0) std::this_thread::sleep_for(50ms);
      if (rank.number == 0) std::ofstream(file) << "data";
    });
    accelerator.wait_for_everyone();
    return text;
  });
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{"prepared", "found", "found"});
}

CATCH_TEST_CASE("the others wait for the main process as long as they are told, and no longer afterwards") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    auto options = rank.options();
    options.rank_timeout = 400ms;
    const Accelerator accelerator(options);
    const auto prepare = [&] {
      if (rank.number == 0) std::this_thread::sleep_for(900ms);
    };
    accelerator.main_process_first(prepare, 10s);
    rank.says("went on");
    if (rank.number == 0) ::raise(SIGSTOP);
    accelerator.wait_for_everyone();
    return std::string("unnoticed");
  });
  CATCH_CHECK(ranks[1].said == "went on");
  CATCH_CHECK(ranks[1].error_id == "rank-lost");
  CATCH_CHECK(ranks[1].after < 5s);
}

CATCH_TEST_CASE("an error of the process that goes first, or of one that follows, reaches all") {
  for (const int failing : {0, 1}) {
    const auto ranks = run_ranks(3, [failing](Rank& rank) {
      const Accelerator accelerator(rank.options());
      int calls = 0;
      std::string text;
      try {
        accelerator.main_process_first([&] {
          ++calls;
          if (rank.number == failing) throw std::runtime_error("no such folder");
        });
      } catch (const std::exception& error) {
        text = error.what();
      }
      return text + ", " + std::to_string(calls) + " calls";
    });
    CATCH_CHECK(ranks[static_cast<std::size_t>(failing)].text == "no such folder, 1 calls");
    const auto other = ranks[failing == 0 ? 1 : 0].text;
    CATCH_CHECK_THAT(other, Contains("[rank-failed]") &&
                                Contains("rank " + std::to_string(failing) + ": no such folder") &&
                                Contains(failing == 0 ? ", 0 calls" : ", 1 calls"));
  }
}

CATCH_TEST_CASE("a line is printed once for all ranks, or once for each machine") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    auto options = rank.options();
    options.launch.local_rank = 0;  // each on a machine of its own
    const Accelerator accelerator(options);
    return printed(rank.directory / ("output-" + std::to_string(rank.number)), [&] {
      accelerator.print("for all");
      accelerator.print_on_each_machine("for each machine");
    });
  });
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{"for all\nfor each machine\n", "for each machine\n"});
}

CATCH_TEST_CASE("with one rank the helpers give back what they got") {
  const Accelerator accelerator({.device = at::kCPU});
  CATCH_CHECK(accelerator.is_local_main_process());
  accelerator.wait_for_everyone();
  CATCH_CHECK(accelerator.gather(2.5) == std::vector{2.5});
  CATCH_CHECK(text_of(accelerator.gather(torch::tensor({1, 2}))) == "1 2");
  CATCH_CHECK(accelerator.gather(torch::tensor(3)).sizes() == std::vector<std::int64_t>{1});
  CATCH_CHECK(text_of(accelerator.reduce(torch::tensor({1, 3}), Reduction::mean)) == "1 3");
  CATCH_CHECK(accelerator.reduce(1.5) == 1.5);
  CATCH_CHECK(accelerator.reduce_mean(3, 2) == 1.5);
  int calls = 0;
  accelerator.main_process_first([&calls] { ++calls; });
  CATCH_CHECK(calls == 1);
  CATCH_CHECK_THROWS_WITH(accelerator.main_process_first([] { throw std::runtime_error("mine"); }), "mine");
}
