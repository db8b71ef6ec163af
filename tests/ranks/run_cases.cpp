// Failures of other training loops with what surrounds the updates of several ranks: data, evaluation,
// checkpoints, the log, and the end.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "lockstep/testing/record.hpp"
#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;

constexpr Interval every_update{.every = 1, .unit = Interval::Unit::step};

std::string described(const TrainState& state) {
  return "epoch " + std::to_string(state.epoch) + " step " + std::to_string(state.step) + " samples " +
         std::to_string(state.samples);
}

/// Every file below `root`, with what is in it.
std::map<std::string, std::string> contents(const std::filesystem::path& root) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.is_regular_file()) files[entry.path().string()] = read_text(entry.path());
  }
  return files;
}

CATCH_TEST_CASE("a checkpoint of another number of ranks is refused, alike on all of them", "[T-28]") {
  const TemporaryDirectory directory;
  const auto train = [&](Rank& rank) -> std::string {
    OneWeightRun run(numbered_batches(12), ledger, {.launch = rank.launch()});
    const TrainOptions options{.checkpoint_dir = directory.path(), .resume_from = latest};
    const auto refusal = train_error(run, {.max_steps = 2}, options);
    return testing::text_of(run.w()) + " " + refusal;
  };
  CATCH_REQUIRE(run_ranks(2, train).same_text() == "-2 ");
  const auto saved = contents(directory.path());
  for (const int count : {1, 3}) {
    const auto refusal = run_ranks(count, train).same_text();
    CATCH_CHECK_THAT(refusal, Catch::Matchers::StartsWith("0 [checkpoint-does-not-fit]"));
    CATCH_CHECK_THAT(refusal, Contains("world_size is 2, here " + std::to_string(count)));
    CATCH_CHECK(contents(directory.path()) == saved);
  }
}

CATCH_TEST_CASE("a checkpoint holds the files of all ranks, however late each comes", "[T-32]") {
  const int count = GENERATE(2, 4);
  const TemporaryDirectory directory;
  const auto holds_all = [&](const std::string& name) {
    for (int rank = 0; rank < count; ++rank) {
      const auto file = "rank-0000" + std::to_string(rank) + ".safetensors";
      if (!exists(directory.path() / name / file)) return false;
    }
    return true;
  };
  const auto ranks = run_ranks(count, [&](Rank& rank) -> std::string {
    std::minstd_rand random(static_cast<unsigned>(1 + rank.number));
    const auto late = [&random](OneWeight& model, const at::Tensor& batch) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 10'000));
      return ledger(model, batch);
    };
    OneWeightRun run(numbered_batches(50 * count), late, {.launch = rank.launch()});
    // In one call, where saving goes on behind the updates, and in many that each end with a checkpoint.
    (void)run.trainer.train({.epochs = 1, .max_steps = 30, .checkpoint_every = every_update},
                            {.checkpoint_dir = directory.path()});
    for (std::int64_t step = 31; step <= 50; ++step) {
      (void)run.trainer.train({.epochs = 1, .max_steps = step}, {.checkpoint_dir = directory.path()});
      if (!holds_all("last")) return "no checkpoint of step " + std::to_string(step);
    }
    return testing::text_of(run.w());
  });
  CATCH_CHECK(ranks.same_text() == "-50");
  const auto folders = checkpoint_folders(directory.path());
  CATCH_CHECK(folders.size() == 50);
  CATCH_CHECK(std::all_of(folders.begin(), folders.end(), holds_all));
}

CATCH_TEST_CASE("patience is judged by the value of all ranks and ends them together", "[T-44]") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto own_scores = rank.number == 0 ? std::vector{1.0, .9, .8, .7} : std::vector{1.0, 1.3, 1.6, 1.9};
    OneWeightRun run(numbered_batches(8), ledger,
                     {.evaluation_set = numbered_batches(2),
                      .evaluation_step = script(own_scores),
                      .launch = rank.launch()});
    const auto state = run.trainer.train({.epochs = 1,
                                          .evaluate_every = every_update,
                                          .monitor = Monitor("validation/score", {.patience = 2})});
    return described(state) + (state.end == EndReason::early_stop ? ", early stop" : "") + ", best " +
           testing::text_of(state.best_metric.value_or(0));
  });
  CATCH_CHECK(ranks.same_text() == "epoch 0 step 3 samples 6, early stop, best 1");
}

CATCH_TEST_CASE("ranks do not wait for one that has failed", "[T-61]") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    auto options = rank.options();
    options.rank_timeout = std::chrono::minutes(30);
    Accelerator accelerator(options);
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(8);
    const auto step = [&](OneWeight& weight, const at::Tensor& batch) {
      if (rank.number == 1 && weight.value() == -1) throw std::domain_error("a leaf fell");
      return ledger(weight, batch);
    };
    Trainer trainer(accelerator, model, optimizer, source, OneWeightStep<at::Tensor>(step));
    (void)trainer.train({.epochs = 1});
    return "";
  });
  CATCH_CHECK(ranks[0].error_id == "rank-failed");
  CATCH_CHECK_THAT(ranks[0].text, Contains("rank 1") && Contains("a leaf fell"));
  CATCH_CHECK(ranks[1].text == "a leaf fell");
  CATCH_CHECK(std::max(ranks[0].after, ranks[1].after) < std::chrono::seconds(30));
}

CATCH_TEST_CASE("ranks with unequal numbers of batches end the epoch together, and use all of them",
                "[T-62]") {
  const bool none = GENERATE(false, true);
  const auto ranks = run_ranks(2, [&](Rank& rank) {
    Accelerator accelerator(rank.options());
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches own = rank.number == 0 ? batches({{1}, {2}, {9}}) : none ? Batches{} : batches({{3}, {4}});
    Trainer trainer(accelerator, model, optimizer, own, OneWeightStep<at::Tensor>(follow),
                    {.own_batches = true});
    std::string after_each;
    for (std::int64_t update = 1; update <= 3; ++update) {
      const auto state = trainer.train({.epochs = 1, .max_steps = update});
      after_each += testing::text_of(model.value()) + " " + described(state) + "; ";
    }
    return after_each;
  });
  const std::string all_of_rank_0 =
      "1 epoch 0 step 1 samples 1; 2 epoch 0 step 2 samples 2; 9 epoch 1 step 3 samples 3; ";
  const std::string means =
      "2 epoch 0 step 1 samples 2; 3 epoch 0 step 2 samples 4; 9 epoch 1 step 3 samples 5; ";
  CATCH_CHECK(ranks.same_text() == (none ? all_of_rank_0 : means));
}

/// The mean over an evaluation set of the numbers below `size`, and how many samples all ranks saw.
std::string evaluated(Accelerator& accelerator, std::int64_t size, std::int64_t batch_size) {
  OneWeight model;
  auto loader = numbered_loader(size, {.batch_size = batch_size});
  std::int64_t seen = 0;
  const OneWeightStep<Example> step = [&](OneWeight& weight, const Example& batch) -> StepOutput {
    seen += batch.data.numel();
    return {.loss = weight.w,
            .num_samples = batch.data.numel(),
            .metrics = {{"number", MeanMetric(batch.data.sum(), batch.data.numel())}}};
  };
  Evaluator evaluator(accelerator, {{"validation", loader}}, step);
  const auto results = evaluator.run(model);
  std::int64_t seen_by_all = 0;
  for (const auto& count : accelerator.collectives().exchange(std::to_string(seen))) {
    seen_by_all += std::stoll(count);
  }
  return testing::text_of(results.at("validation").at("number")) + " of " + std::to_string(seen_by_all);
}

CATCH_TEST_CASE("an evaluation counts every sample once on any number of ranks", "[T-65]") {
  const int count = GENERATE(2, 3);
  const auto ranks = run_ranks(count, [&](Rank& rank) {
    Accelerator accelerator(rank.options());
    std::string wrong;
    for (std::int64_t size = 1; size <= 17; ++size) {
      for (std::int64_t batch_size = 1; batch_size <= 4; ++batch_size) {
        const auto expected =
            testing::text_of(static_cast<double>(size - 1) / 2) + " of " + std::to_string(size);
        const auto found = evaluated(accelerator, size, batch_size);
        if (found != expected) {
          wrong += std::to_string(size) + " in " + std::to_string(batch_size) + "s: " + found + "; ";
        }
      }
    }
    return wrong + evaluated(accelerator, 22, 8);
  });
  CATCH_CHECK(ranks.same_text() == "10.5 of 22");
}

CATCH_TEST_CASE("an empty evaluation set is an error on all ranks", "[T-65]") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    Accelerator accelerator(rank.options());
    OneWeight model;
    Batches empty;
    Evaluator evaluator(accelerator, {{"validation", empty}}, OneWeightStep<at::Tensor>(ledger));
    (void)evaluator.run(model);
    return "";
  });
  CATCH_CHECK(ranks.error_ids() == std::vector<std::string>(2, "empty-evaluation-set"));
}

CATCH_TEST_CASE("the console shows a run of several ranks once", "[T-76]") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    for (const std::string name : {"first", "second"}) {
      RunLogger logger(rank.directory / name,
                       {.is_main_process = rank.number == 0, .seconds_between_lines = 0});
      auto launch = rank.launch();
      launch.meeting_point = "file://" + (rank.directory / ("meeting-" + name)).string();
      OneWeightRun run(numbered_batches(20), ledger, {.logger = &logger, .launch = launch});
      (void)run.trainer.train({.epochs = 1, .log_every = 1, .checkpoint_every = {}});
    }
    return "";
  });
  CATCH_REQUIRE(ranks.all_returned());
  // "08:15:26  step 2/10  epoch 0  train/loss -1.000 ...", and start and end of each run.
  std::vector<std::string> shown;
  std::istringstream lines(ranks[0].output + ranks[1].output);
  for (std::string line; std::getline(lines, line);) {
    std::string time, step, number_of_step, epoch, number_of_epoch, what;
    std::istringstream(line) >> time >> step >> number_of_step >> epoch >> number_of_epoch >> what;
    shown.push_back(what + " " + number_of_step);
  }
  std::vector<std::string> expected{"start 0/10"};
  for (int step = 1; step <= 10; ++step) expected.push_back("train/loss " + std::to_string(step) + "/10");
  expected.push_back("epoch/loss 10/10");
  expected.push_back("end 10/10");
  const auto one_run = expected;
  expected.insert(expected.end(), one_run.begin(), one_run.end());
  CATCH_CHECK(shown == expected);
}

CATCH_TEST_CASE("in every epoch the ranks share the samples in a new order", "[T-97]") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Tape tape;
    OneWeightRun run(numbered_loader(8, {.batch_size = 1, .shuffle = true, .seed = 7}), recorded(tape),
                     {.launch = rank.launch()});
    (void)run.trainer.train({.epochs = 3});
    std::string text;
    for (const double sample : tape) text += testing::text_of(sample);
    return text;
  });
  std::set<std::string> orders;
  for (std::size_t epoch = 0; epoch < 3; ++epoch) {
    auto order = ranks[0].text.substr(4 * epoch, 4) + ranks[1].text.substr(4 * epoch, 4);
    orders.insert(order);
    std::sort(order.begin(), order.end());
    CATCH_CHECK(order == "01234567");
  }
  CATCH_CHECK(orders.size() == 3);
  CATCH_CHECK(ranks[0].text.size() + ranks[1].text.size() == 24);
}

}  // namespace
}  // namespace lockstep::test
