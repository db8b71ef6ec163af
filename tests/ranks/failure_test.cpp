// What goes wrong on one rank ends the run on all of them, by name, and loses nothing.
#include <csignal>
#include <fstream>
#include <new>

#include "lockstep/testing.hpp"
#include "support/catch.hpp"
#include "support/file_size_limit.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Ids = std::vector<std::string>;
using Step = OneWeightStep<at::Tensor>;

/// What makes one rank fail, and when: a Step's call, the data set's, the optimizer's.
struct Trouble {
  std::function<void(OneWeight&)> in_step = [](OneWeight&) {};
  std::function<void()> in_evaluation = [] {};
  std::function<void()> in_optimizer = [] {};
};

struct TroubledSgd : torch::optim::SGD {
  TroubledSgd(OneWeight& model, std::function<void()> trouble)
      : SGD(model.parameters(), torch::optim::SGDOptions(1)), trouble(std::move(trouble)) {}
  at::Tensor step(LossClosure closure = nullptr) override {
    trouble();
    return SGD::step(std::move(closure));
  }
  std::function<void()> trouble;
};

/// Eight updates of the ledger on all ranks, with an evaluation and a checkpoint at every one.
template <class Source>
std::string train(const AcceleratorOptions& options, Source source, const Trouble& trouble,
                  const std::filesystem::path& checkpoints, TrainConfig config = {}) {
  Accelerator accelerator(options);
  OneWeight model;
  TroubledSgd optimizer(model, trouble.in_optimizer);
  const auto step = [&trouble](OneWeight& weight, const batch_t<Source>& batch) {
    trouble.in_step(weight);
    return ledger(weight, batch);
  };
  Batches set = numbered_batches(2);
  Evaluator evaluator(accelerator, {{"validation", set}}, Step([&trouble](OneWeight& weight, const at::Tensor& batch) {
                        trouble.in_evaluation();
                        return ledger(weight, batch);
                      }));
  Trainer trainer(accelerator, model, optimizer, source, OneWeightStep<batch_t<Source>>(step),
                  {.evaluator = &evaluator});
  config.max_steps = 8;
  config.evaluate_every = Interval{1, Interval::Unit::step};
  config.checkpoint_every = Interval{1, Interval::Unit::step};
  trainer.train(config, {.checkpoint_dir = checkpoints, .resume_from = latest});
  return "w " + testing::text_of(model.value());
}

/// Runs `count` ranks with the trouble that `make` gives a rank, then the same again without, from what was saved.
Ranks run_with_trouble(int count, const std::function<Trouble(Rank&)>& make, double weight_saved,
                       const std::function<void(AcceleratorOptions&)>& change = [](AcceleratorOptions&) {}) {
  const TemporaryDirectory folder;
  const auto checkpoints = folder.path() / "checkpoints";
  auto ranks = run_ranks(count, [&](Rank& rank) {
    auto options = rank.options();
    change(options);
    // At once, so that it is known what is saved where rank 0 is killed.
    return train(options, numbered_batches(16), make(rank), checkpoints, {.background_saves = false});
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(saved_w(checkpoints / "last") == weight_saved);
  const auto again = run_ranks(count, [&](Rank& rank) {
    return train(rank.options(), numbered_batches(16), {}, checkpoints);
  });
  CATCH_CHECK(again.same_text() == "w -8");
  return ranks;
}

std::function<void()> at_call(int call, std::function<void()> act) {
  return [call, act = std::move(act), calls = std::make_shared<int>(0)] {
    if (++*calls == call) act();
  };
}

void fail() { throw std::runtime_error("a leaf fell"); }

/// Of rank 1 of two, in the place that `put` gives the trouble.
Trouble on_rank_1(Rank& rank, std::function<void(Trouble&)> put) {
  Trouble trouble;
  if (rank.number == 1) put(trouble);
  return trouble;
}

/// Rank 0 ended because of what rank 1 said.
void check_told_of_rank_1(const Ranks& ranks, const std::string& said) {
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks[0].error_id == "rank-failed");
  CATCH_CHECK_THAT(ranks[0].text, Contains("rank 1: " + said));
}

CATCH_TEST_CASE("a Step that throws on one rank ends all of them at that update") {
  for (const int count : {2, 3}) {
    const auto ranks = run_with_trouble(
        count,
        [](Rank& rank) {
          return on_rank_1(rank, [](Trouble& trouble) {
            trouble.in_step = [step = at_call(3, fail)](OneWeight&) { step(); };
          });
        },
        -2);
    check_told_of_rank_1(ranks, "a leaf fell");
    CATCH_CHECK(ranks[1].text == "a leaf fell");
    if (count == 3) CATCH_CHECK(ranks[2].text == ranks[0].text);
  }
}

CATCH_TEST_CASE("a rank that is out of memory in its Step ends all of them at that update") {
  const auto ranks = run_with_trouble(
      2,
      [](Rank& rank) {
        return on_rank_1(rank, [](Trouble& trouble) {
          trouble.in_step = [step = at_call(3, [] { throw std::bad_alloc(); })](OneWeight&) { step(); };
        });
      },
      -2);
  check_told_of_rank_1(ranks, "std::bad_alloc");
}

CATCH_TEST_CASE("a loss that is not finite on one rank ends all of them at that update") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    Accelerator accelerator(rank.options());
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(8);
    Trainer trainer(accelerator, model, optimizer, source, Step([](OneWeight& weight, const at::Tensor& batch) {
                      auto output = ledger(weight, batch);
                      if (batch.item<double>() == 3) output.loss = output.loss / 0.0;
                      return output;
                    }));
    try {
      trainer.train({.epochs = 1});
    } catch (...) {
      if (model.value() != -1 || trainer.state().step != 1) return "not as before the window";
      throw;
    }
    return "trained";
  });
  CATCH_CHECK(ranks.error_ids() == Ids{"rank-failed", "non-finite-loss"});
  CATCH_CHECK_THAT(ranks[0].text, Contains("rank 1: [non-finite-loss]"));
}

CATCH_TEST_CASE("a gradient that is not finite on one rank is the same error on all") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    Accelerator accelerator(rank.options());
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(8);
    Trainer trainer(accelerator, model, optimizer, source, Step([](OneWeight& weight, const at::Tensor& batch) {
                      auto copy = weight.w.clone();
                      if (batch.item<double>() == 3) {
                        copy.register_hook([](const at::Tensor& gradient) { return gradient / 0.0; });
                      }
                      return StepOutput{.loss = copy, .num_samples = 1};
                    }));
    trainer.train({.epochs = 1});
    return "trained";
  });
  CATCH_CHECK(ranks.error_ids() == Ids{"non-finite-gradient", "non-finite-gradient"});
}

CATCH_TEST_CASE("a backward pass that throws after some slices have left ends all ranks at that update") {
  struct Chain : torch::nn::Module {
    Chain() {
      for (int i = 0; i < 6; ++i) weights.push_back(register_parameter("w" + std::to_string(i), torch::ones({5})));
    }
    std::vector<at::Tensor> weights;
  };
  const auto ranks = run_ranks(3, [](Rank& rank) -> std::string {
    auto options = rank.options();
    options.slice_bytes = 1;
    options.gradient_accumulation_steps = 2;
    Accelerator accelerator(options);
    auto model = std::make_shared<Chain>();
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    Batches source = numbered_batches(18);
    int calls = 0;
    Trainer trainer(accelerator, model, optimizer, source, [&](Chain& chain, const at::Tensor&) -> StepOutput {
      ++calls;
      auto value = torch::ones({5}, at::kDouble);
      for (std::size_t i = 0; i < chain.weights.size(); ++i) {
        value = value * chain.weights[i];
        if (i == 2 && calls == 4 && rank.number == 2) {
          value.register_hook([](const at::Tensor& gradient) -> at::Tensor {
            fail();
            return gradient;
          });
        }
      }
      return {.loss = value.mean(), .num_samples = 1};
    });
    try {
      trainer.train({.epochs = 1});
    } catch (...) {
      rank.says("step " + std::to_string(trainer.state().step));
      throw;
    }
    return "trained";
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks[0].error_id == "rank-failed");
  CATCH_CHECK_THAT(ranks[0].text, Contains("rank 2: a leaf fell"));
  CATCH_CHECK(ranks[1].text == ranks[0].text);
  CATCH_CHECK_THAT(ranks[2].text, Contains("a leaf fell"));
  for (std::size_t rank = 0; rank < 3; ++rank) CATCH_CHECK(ranks[rank].said == "step 1");
}

struct TroubledSet {
  std::int64_t failing_index = -1;
  [[nodiscard]] std::optional<std::size_t> size() const { return 16; }
  [[nodiscard]] Example get(std::int64_t index) const {
    if (index == failing_index) fail();
    return {torch::zeros({1}, at::kDouble), torch::zeros({1}, at::kDouble)};
  }
};

CATCH_TEST_CASE("a data set that throws on one rank ends all of them at that update") {
  for (const int workers : {0, 2}) {
    const TemporaryDirectory folder;
    const auto ranks = run_ranks(2, [&](Rank& rank) {
      // The sixth update's batch of rank 1.
      return train(rank.options(), DataLoader(TroubledSet{.failing_index = 11}, {.workers = workers}), {},
                   folder.path() / "checkpoints");
    });
    CATCH_CAPTURE(ranks.report());
    check_told_of_rank_1(ranks, "a leaf fell");
    CATCH_CHECK(saved_w(folder.path() / "checkpoints" / "last") == -5);
  }
}

CATCH_TEST_CASE("an optimizer that throws on one rank ends all of them one update later at most") {
  const auto ranks = run_with_trouble(
      2,
      [](Rank& rank) {
        return on_rank_1(rank, [](Trouble& trouble) { trouble.in_optimizer = at_call(3, fail); });
      },
      -2);
  check_told_of_rank_1(ranks, "a leaf fell");
}

CATCH_TEST_CASE("an evaluation that throws on one rank ends all of them there") {
  const auto ranks = run_with_trouble(
      2,
      [](Rank& rank) {
        return on_rank_1(rank, [](Trouble& trouble) { trouble.in_evaluation = at_call(3, fail); });
      },
      -2);
  check_told_of_rank_1(ranks, "a leaf fell");
}

/// From its fourth update on rank 0 cannot write files of more than 100 bytes; until its sixth, if it may again.
Ranks with_full_disk(const std::filesystem::path& checkpoints, const TrainConfig& config, bool for_good) {
  return run_ranks(2, [&](Rank& rank) -> std::string {
    Trouble trouble;
    std::optional<FileSizeLimit> limit;
    if (rank.number == 0) {
      trouble.in_optimizer = [&limit, for_good, calls = 0]() mutable {
        if (++calls == 4) limit.emplace(100);
        if (calls == 6 && !for_good) limit.reset();
      };
    }
    return train(rank.options(), numbered_batches(16), trouble, checkpoints, config);
  });
}

CATCH_TEST_CASE("a checkpoint that cannot be written ends all ranks where it is to, and every older one stays") {
  const TemporaryDirectory folder;
  const auto ranks = with_full_disk(folder.path(), {.background_saves = false, .fail_on_save_error = true}, true);
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.error_ids() == Ids{"cannot-write-file", "rank-failed"});
  CATCH_CHECK(saved_w(folder.path() / "last") == -3);
}

CATCH_TEST_CASE("a checkpoint that fails in the background ends all ranks within two updates where it is to") {
  const TemporaryDirectory folder;
  const auto ranks = with_full_disk(folder.path(), {.fail_on_save_error = true}, true);
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.error_ids() == Ids{"cannot-write-file", "rank-failed"});
  // The third save may have been under way.
  CATCH_CHECK(saved_w(folder.path() / "last") <= -2);
  CATCH_CHECK(saved_w(folder.path() / "last") >= -3);
}

CATCH_TEST_CASE("ranks go on after a checkpoint that could not be written, and later ones are whole") {
  const bool background = GENERATE(false, true);
  const TemporaryDirectory folder;
  const auto ranks = with_full_disk(folder.path(), {.background_saves = background}, false);
  CATCH_CHECK(ranks.same_text() == "w -8");
  CATCH_CHECK_THAT(ranks[0].output, Contains("a checkpoint could not be saved: [cannot-write-file]"));
  CATCH_CHECK_THAT(ranks[1].output, !Contains("could not be saved"));
  CATCH_CHECK(saved_w(folder.path() / "final") == -8);
}

CATCH_TEST_CASE("a last state that cannot be written is an error on all ranks, whatever is said of others") {
  const TemporaryDirectory folder;
  const auto ranks = with_full_disk(folder.path(), {}, true);
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.error_ids() == Ids{"cannot-write-file", "rank-failed"});
  CATCH_CHECK(saved_w(folder.path() / "last") >= -3);
}

CATCH_TEST_CASE("a rank that is killed in its Step is named by the others at once") {
  for (const int victim : {0, 1}) {
    const auto ranks = run_with_trouble(
        3,
        [victim](Rank& rank) {
          Trouble trouble;
          if (rank.number == victim) {
            trouble.in_step = [step = at_call(4, [] { ::raise(SIGKILL); })](OneWeight&) { step(); };
          }
          return trouble;
        },
        -3);
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == victim) continue;
      const auto& end = ranks[static_cast<std::size_t>(rank)];
      CATCH_CHECK(end.error_id == "rank-lost");
      CATCH_CHECK_THAT(end.text, Contains("rank " + std::to_string(victim)));
      CATCH_CHECK(end.after < std::chrono::seconds(15));
    }
  }
}

CATCH_TEST_CASE("a rank that is frozen is named by the others within the timeout and a second") {
  const auto ranks = run_with_trouble(
      3,
      [](Rank& rank) {
        return on_rank_1(rank, [](Trouble& trouble) {
          trouble.in_step = [step = at_call(4, [] { ::raise(SIGSTOP); })](OneWeight&) { step(); };
        });
      },
      -3, [](AcceleratorOptions& options) { options.rank_timeout = std::chrono::seconds(3); });
  CATCH_CHECK(ranks[1].frozen);
  for (const std::size_t rank : {0, 2}) {
    CATCH_CHECK(ranks[rank].error_id == "rank-lost");
    CATCH_CHECK_THAT(ranks[rank].text, Contains("rank 1"));
    CATCH_CHECK(ranks[rank].after < std::chrono::seconds(3 + 1 + 8));  // and what came before
  }
}

CATCH_TEST_CASE("a rank that is killed while the checkpoint is written leaves the newest one whole") {
  // At the fourth save rank 0 dies when its first file reaches 100 bytes: before the second rank's file.
  const TemporaryDirectory folder;
  const auto checkpoints = folder.path() / "checkpoints";
  const auto ranks = run_ranks(2, [&](Rank& rank) -> std::string {
    Trouble trouble;
    if (rank.number == 0) {
      trouble.in_optimizer = at_call(4, [] {
        ::signal(SIGXFSZ, SIG_DFL);
        const rlimit limit{100, 100};
        ::setrlimit(RLIMIT_FSIZE, &limit);
      });
    }
    return train(rank.options(), numbered_batches(16), trouble, checkpoints, {.background_saves = false});
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(WIFSIGNALED(ranks[0].status));
  CATCH_CHECK(ranks[1].error_id == "rank-lost");
  CATCH_CHECK(saved_w(checkpoints / "last") == -3);
  const auto again = run_ranks(2, [&](Rank& rank) {
    return train(rank.options(), numbered_batches(16), {}, checkpoints);
  });
  CATCH_CHECK(again.same_text() == "w -8");
}

/// Trains one update on two ranks, of which `differ` changes what rank 1 does.
template <class Differ>
Ranks differing(Differ differ) {
  return run_ranks(2, [&](Rank& rank) -> std::string {
    auto options = rank.options();
    std::int64_t features = 3;
    std::int64_t samples = 8;
    TrainConfig config{.epochs = 1};
    if (rank.number == 1) differ(options, features, samples, config);
    Accelerator accelerator(options);
    auto model = std::make_shared<torch::nn::LinearImpl>(features, 1);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1));
    DataLoader loader(TensorDataset(torch::ones({samples, features})), {.batch_size = 2});
    Trainer trainer(accelerator, model, optimizer, loader, [](torch::nn::LinearImpl& linear, const Example& batch) {
      return StepOutput{.loss = linear.forward(batch.data).mean(), .num_samples = batch.data.size(0)};
    });
    trainer.train(config);
    return "trained";
  });
}

CATCH_TEST_CASE("ranks that do not run the same training are told what differs before the first batch") {
  using Options = AcceleratorOptions;
  const auto check = [](const Ranks& ranks, const std::string& part) {
    CATCH_CAPTURE(ranks.report());
    CATCH_CHECK(ranks.error_ids() == Ids{"ranks-differ", "ranks-differ"});
    CATCH_CHECK_THAT(ranks[0].text, Contains(part));
    CATCH_CHECK(ranks[0].text == ranks[1].text);
  };
  check(differing([](Options&, auto& features, auto&, auto&) { features = 4; }),
        "rank 1: /tensors/parameters/weight is \"Double [1,4]\", on rank 0 \"Double [1,3]\"");
  check(differing([](Options&, auto&, auto&, TrainConfig& config) { config.epochs = 3; }),
        "rank 1: /config/train/epochs is 3, on rank 0 1");
  check(differing([](Options&, auto&, auto& samples, auto&) { samples = 10; }),
        "rank 1: /run/data/batches is 5, on rank 0 4");
  check(differing([](Options& options, auto&, auto&, auto&) { options.gradient_accumulation_steps = 2; }),
        "rank 1: /run/gradient_accumulation_steps is 2, on rank 0 1");
}

CATCH_TEST_CASE("weights that something changes on one rank alone are found out by name") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    Accelerator accelerator(rank.options());
    auto model = std::make_shared<torch::nn::LinearImpl>(3, 1);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(1));
    DataLoader loader(TensorDataset(torch::ones({16, 3})), {.batch_size = 2});
    int calls = 0;
    Trainer trainer(accelerator, model, optimizer, loader, [&](torch::nn::LinearImpl& linear, const Example& batch) {
      auto loss = linear.forward(batch.data).mean();
      if (++calls == 3 && rank.number == 1) {
        const torch::NoGradGuard no_grad;
        linear.bias.data().add_(1e-12);
      }
      return StepOutput{.loss = loss, .num_samples = batch.data.size(0)};
    });
    trainer.train({.epochs = 1, .check_ranks_every = Interval{1, Interval::Unit::step}});
    return "trained";
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.error_ids() == Ids{"weights-differ", "weights-differ"});
  CATCH_CHECK_THAT(ranks[0].text, Contains("after update 3") && Contains("rank 1") && Contains("\"bias\""));
}

struct TwoWeights : torch::nn::Module {
  at::Tensor w = register_parameter("w", torch::zeros({}));
  at::Tensor b = register_parameter("b", torch::zeros({}));
};

CATCH_TEST_CASE("a gradient that is added to after it was sent is refused") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    auto options = rank.options();
    options.slice_bytes = 1;  // a single slice as small as this would go with the vote
    Accelerator accelerator(options);
    TwoWeights model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(8);
    Trainer trainer(accelerator, model, optimizer, source, [](TwoWeights& weights, const at::Tensor&) {
                      // A second backward pass inside of the first.
                      auto copy = weights.w * 1;
                      copy.register_hook([&weights](const at::Tensor& gradient) {
                        const c10::AutoGradMode on(true);
                        (weights.w * 2).backward();
                        return gradient;
                      });
                      return StepOutput{.loss = copy + weights.b, .num_samples = 1};
                    });
    trainer.train({.epochs = 1});
    return "trained";
  });
  CATCH_CAPTURE(ranks.report());
  // The first window is summed after its backward pass, so it may still be added to.
  CATCH_CHECK(ranks.error_ids() == Ids{"gradient-after-sync", "gradient-after-sync"});
}

}  // namespace
}  // namespace lockstep::test
