// What several processes do together over Gloo.
#include "support/process_group.hpp"
#include "support/catch.hpp"

using namespace lockstep;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;
using test::join;
using test::Rank;
using test::run_ranks;
using test::text_of;

CATCH_TEST_CASE("every rank gets all votes in rank order") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank);
    const Vote mine{.phase = Phase::evaluation,
                    .stop = rank.number == 1,
                    .samples = 10 + rank.number,
                    .loss_unit = -1};
    std::string text;
    for (const auto& vote : group->vote(mine)) {
      text += std::to_string(vote.samples) + (vote.stop ? " stop" : "") +
              (vote.phase == Phase::evaluation && vote.loss_unit == -1 ? "; " : " wrong; ");
    }
    return text;
  });
  CATCH_CHECK(ranks.same_text() == "10; 11 stop; 12; ");
}

CATCH_TEST_CASE("a vote brings the sum of a tensor along, in rank order, with nothing of a rank that failed") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank);
    std::string text;
    const auto meet = [&](const at::Tensor& tensor, bool failed) {
      group->sum_with_vote(tensor);
      for (const auto& vote : group->vote({.failed = failed, .samples = rank.number})) {
        text += std::to_string(vote.samples) + (vote.failed ? " failed " : " ");
      }
      text += std::to_string(tensor.sum().item<double>()) + "; ";
    };
    // In float, (2^24 + 1) - 2^24 is 0 and (2^24 - 2^24) + 1 is 1.
    meet(torch::full({2}, std::vector{16777216.0, 1.0, -16777216.0}.at(static_cast<std::size_t>(rank.number))), false);
    meet(torch::full({2}, std::vector{16777216.0, -16777216.0, 1.0}.at(static_cast<std::size_t>(rank.number))), false);
    meet(torch::full({5}, 1.5, torch::kDouble), rank.number == 1);
    text += std::to_string(group->vote({.samples = 7}).size());
    return text;
  });
  CATCH_CHECK(ranks.same_text() ==
              "0 1 2 0.000000; 0 1 2 2.000000; 0 1 failed 2 15.000000; 3");
}

CATCH_TEST_CASE("an exchange hands over texts of different lengths, empty ones and zero bytes among them") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank);
    const std::vector<std::string> all{"", std::string("a\0b", 3), "longest"};
    const auto given = group->exchange(all.at(static_cast<std::size_t>(rank.number)));
    const auto nothing = group->exchange("");
    return std::string(given == all && nothing == std::vector<std::string>(3) ? "right" : "wrong");
  });
  CATCH_CHECK(ranks.same_text() == "right");
}

CATCH_TEST_CASE("a broadcast gives rank 0's values to tensors of any type and strides") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank);
    const bool first = rank.number == 0;
    const auto flat = torch::full({10}, -1.0);
    const auto view = flat.narrow(0, 3, 4).view({2, 2});
    const auto transposed = torch::zeros({2, 3}, torch::kDouble).t();
    const auto parameter = torch::zeros({3}, torch::requires_grad());
    const auto flags = torch::zeros({3}, torch::kBool);
    const auto count = torch::zeros({}, torch::kLong);
    const auto half = torch::zeros({3}, torch::kBFloat16);
    const auto complex = torch::zeros({1}, torch::kComplexDouble);
    const auto empty = torch::zeros({0, 4});
    if (first) {
      const torch::NoGradGuard no_grad;
      view.copy_(torch::tensor({1.0, 2.0, 3.0, 4.0}).view({2, 2}));
      transposed.copy_(torch::arange(6, torch::kDouble).view({3, 2}));
      parameter.fill_(0.5);
      flags[1] = true;
      count.fill_(1'000'000'000'007);
      half.fill_(3.5);
      complex.fill_(c10::complex<double>(1, 2));
    }
    group->broadcast({view, transposed, parameter, flags, count, half, complex, empty});
    return text_of(flat) + "|" + text_of(transposed) + "|" + text_of(parameter) + "|" + text_of(flags) + "|" +
           std::to_string(count.item<std::int64_t>()) + "|" + text_of(half) + "|" +
           text_of(torch::view_as_real(complex));
  });
  CATCH_CHECK(ranks.same_text() ==
              "-1 -1 -1 1 2 3 4 -1 -1 -1|0 1 2 3 4 5|0.5 0.5 0.5|0 1 0|1000000000007|3.5 3.5 3.5|1 2");
}

CATCH_TEST_CASE(
    "a broadcast of thousands of tensors, or of one that is larger than a buffer, arrives whole") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank);
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < 3000; ++i)
      tensors.push_back(torch::full({7}, rank.number == 0 ? i : -1, torch::kInt));
    const std::int64_t large = (17 << 20) / 8;
    tensors.push_back(torch::full({large}, rank.number == 0 ? 2.0 : -1.0, torch::kDouble));
    // The same bytes, although the strides differ between the ranks.
    tensors.push_back(rank.number == 0 ? torch::arange(2 * large, torch::kDouble).view({2, large})
                                       : torch::zeros({large, 2}, torch::kDouble).t());
    for (int i = 0; i < 10; ++i)
      tensors.push_back(torch::full({3 << 20}, rank.number == 0 ? i : -1, torch::kByte));
    group->broadcast(tensors);
    for (int i = 0; i < 3000; ++i) {
      if (!tensors[static_cast<std::size_t>(i)].eq(i).all().item<bool>())
        return "small tensor " + std::to_string(i);
    }
    if (!tensors[3000].eq(2).all().item<bool>()) return std::string("large tensor");
    if (!torch::equal(tensors[3001], torch::arange(2 * large, torch::kDouble).view({2, large}))) {
      return std::string("large transposed tensor");
    }
    for (int i = 0; i < 10; ++i) {
      if (!tensors[static_cast<std::size_t>(3002 + i)].eq(i).all().item<bool>())
        return std::string("buffers");
    }
    return std::string("right");
  });
  CATCH_CHECK(ranks.same_text() == "right");
}

CATCH_TEST_CASE("several sums may be under way, on slices of one buffer") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank);
    const auto flat = torch::arange(6, torch::kDouble) * (rank.number + 1);
    const auto single = torch::full({2}, 0.5f + static_cast<float>(rank.number));
    auto last = group->sum(flat.narrow(0, 4, 2));
    auto first = group->sum(flat.narrow(0, 0, 2));
    auto other = group->sum(single);
    other->wait();
    first->wait();
    last->wait();
    return text_of(flat) + "|" + text_of(single);
  });
  for (int rank = 0; rank < 3; ++rank) {
    // Times 1 + 2 + 3, but for the middle, which no sum had.
    const auto middle = std::to_string(2 * (rank + 1)) + " " + std::to_string(3 * (rank + 1));
    CATCH_CHECK(ranks.texts()[static_cast<std::size_t>(rank)] == "0 6 " + middle + " 24 30|4.5 4.5");
  }
}

CATCH_TEST_CASE("half types are summed, through float32 where the back end cannot") {
  for (const bool native : {true, false}) {
    const auto ranks = run_ranks(3, [native](Rank& rank) {
      const auto group = join(rank, {.timeout = 20s, .native_half_sums = native});
      const auto half = torch::full({2}, rank.number + 0.5, torch::kHalf);
      const auto brain = torch::full({2}, rank.number + 0.25, torch::kBFloat16);
      // 2048 + 1 is 2048 in half precision, whatever the order.
      const auto large = torch::full({1}, rank.number == 0 ? 2048.0 : 0.75, torch::kHalf);
      std::vector<std::unique_ptr<PendingSum>> sums;
      for (const auto& tensor : {half, brain, large}) sums.push_back(group->sum(tensor));
      for (const auto& sum : sums) sum->wait();
      return text_of(half) + "|" + text_of(brain) + "|" + (native ? "" : text_of(large));
    });
    CATCH_CHECK(ranks.same_text() == (native ? "4.5 4.5|3.75 3.75|" : "4.5 4.5|3.75 3.75|2050"));
  }
}

CATCH_TEST_CASE("two ranks sum every type, one sum after the other and several at once") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank);
    std::string text;
    for (int round = 0; round < 2; ++round) {
      const auto half = torch::full({1}, rank.number == 0 ? 2048.0 : 1.5, torch::kHalf);
      const auto brain = torch::full({2}, rank.number + 0.25, torch::kBFloat16);
      const auto count = torch::full({1}, (std::int64_t{1} << 40) + rank.number + round, torch::kLong);
      const auto large = torch::full({1 << 20}, 0.1 * (rank.number + 1), torch::kDouble);
      const auto small = torch::full({2}, rank.number == 0 ? 0.1f : 0.2f);
      std::vector<std::unique_ptr<PendingSum>> sums;
      for (const auto& tensor : {large, half, brain, count, small}) sums.push_back(group->sum(tensor));
      group->barrier();
      for (auto sum = sums.rbegin(); sum != sums.rend(); ++sum) (*sum)->wait();
      CATCH_CHECK(large.eq(0.1 + 0.2).all().item<bool>());
      CATCH_CHECK(small.eq(0.1f + 0.2f).all().item<bool>());
      text += text_of(half) + "|" + text_of(brain) + "|" + std::to_string(count.item<std::int64_t>()) + ";";
    }
    return text;
  });
  // 2049.5 is 2050 in half precision.
  CATCH_CHECK(ranks.same_text() == "2050|1.5 1.5|2199023255553;2050|1.5 1.5|2199023255555;");
}

CATCH_TEST_CASE("no rank passes a barrier before all have come") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank);
    if (rank.number == 1) {
      std::this_thread::sleep_for(100ms);
      std::ofstream(rank.directory / "came") << "yes";
    }
    group->barrier();
    return std::string(std::filesystem::exists(rank.directory / "came") ? "all came" : "passed too early");
  });
  CATCH_CHECK(ranks.same_text() == "all came");
}

CATCH_TEST_CASE("what happens inside a Step has connections of its own") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank);
    auto& inside = group->inside_step();
    const auto outer = torch::ones({1000});
    const auto inner = torch::ones({3});
    auto pending = group->sum(outer);
    inside.sum(inner)->wait();
    pending->wait();
    return text_of(inner) + "|" + std::to_string(outer.sum().item<float>());
  });
  CATCH_CHECK(ranks.same_text() == "2 2 2|2000.000000");
}

CATCH_TEST_CASE("the ranks meet at a port that rank 0 serves as well as at a file") {
  const auto ranks = run_ranks(3,
                               [](Rank& rank) {
                                 const auto group = join(rank);
                                 const auto all = group->exchange(std::to_string(rank.number));
                                 return all[0] + all[1] + all[2];
                               },
                               {.over_tcp = true});
  CATCH_CHECK(ranks.same_text() == "012");
}

CATCH_TEST_CASE("an Accelerator joins the ranks that its options name") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const Accelerator accelerator(rank.options());
    const auto value = torch::ones({1}, torch::kDouble);
    accelerator.collectives().sum(value)->wait();
    return std::to_string(accelerator.rank()) + " of " + std::to_string(accelerator.world_size()) + ": " +
           (accelerator.is_main_process() ? "main " : "") + text_of(value);
  });
  CATCH_CHECK(ranks.texts() == std::vector<std::string>{"0 of 2: main 2", "1 of 2: 2"});
}

CATCH_TEST_CASE("collectives that are checked find the rank that leaves the common path, and by what") {
  const auto ranks = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 20s, .check_order = true});
    (void)group->vote({.phase = Phase::window});
    if (rank.number == 1) {
      group->barrier();
    } else {
      group->sum(torch::ones({8}))->wait();
    }
    return std::string("unnoticed");
  });
  CATCH_CHECK(ranks.error_ids() == std::vector<std::string>(3, "ranks-out-of-order"));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    CATCH_CHECK_THAT(ranks[rank].text, Contains("rank 0: call 2, a sum of 8 values, 32 bytes") &&
                                           Contains("rank 1: call 2, a barrier") &&
                                           Contains("rank 2: call 2, a sum of 8 values, 32 bytes"));
  }
}

CATCH_TEST_CASE("collectives that are checked find sizes and phases that differ") {
  const auto sizes = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 20s, .check_order = true});
    group->inside_step().sum(torch::ones({4 + rank.number}))->wait();
    return std::string("unnoticed");
  });
  CATCH_CHECK(sizes.error_ids() == std::vector<std::string>(2, "ranks-out-of-order"));
  CATCH_CHECK_THAT(sizes[0].text, Contains("rank 1: call 1, a sum of 5 values, 20 bytes inside a Step"));

  const auto phases = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 20s, .check_order = true});
    (void)group->vote({.phase = rank.number == 0 ? Phase::window : Phase::checkpoint});
    return std::string("unnoticed");
  });
  CATCH_CHECK_THAT(phases[1].text, Contains("rank 0: call 1, a vote, phase window") &&
                                       Contains("rank 1: call 1, a vote, phase checkpoint"));
}

CATCH_TEST_CASE("collectives that are checked do the same as those that are not") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto group = join(rank, {.timeout = 20s, .check_order = true});
    const auto values = torch::full({3}, 1.0 + rank.number);
    const auto all = group->exchange(rank.number == 0 ? "a" : "longer");
    group->broadcast({values});
    group->sum(values)->wait();
    group->barrier();
    return text_of(values) + all[0] + all[1] +
           std::to_string(group->vote({.samples = rank.number})[1].samples);
  });
  CATCH_CHECK(ranks.same_text() == "2 2 2alonger1");
}
