#include <csignal>

#include "invariants/cases.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Step = OneWeightStep<at::Tensor>;

/// All that each rank's next update depends on, generators and buffers included.
std::string digest(const testing::Record& record) { return sha256(record.tensors); }

/// The whole run of a case on two ranks; `killed_at`: all of them are killed at this call of their Step.
template <class C>
Ranks run_case(const std::filesystem::path& checkpoints, std::int64_t killed_at) {
  return run_ranks(2, [&](Rank& rank) {
    auto settings = C().settings();
    settings.accelerator.launch = rank.launch();
    settings.config.checkpoint_every = every_steps(1);
    testing::CaseRun<C> run(C(), settings);
    run.set_intercept([&](std::int64_t microbatch, const std::function<StepOutput()>& step) {
      if (microbatch == killed_at) ::raise(SIGKILL);
      return step();
    });
    run.train({.checkpoint_dir = checkpoints, .resume_from = latest});
    return digest(run.record());
  });
}

CATCH_TEMPLATE_TEST_CASE("two ranks killed before any microbatch and started again equal two that were not", "", Mlp,
                         OddFlat, OddSeparate) {
  const TemporaryDirectory folder;
  const auto expected = run_case<TestType>(folder.path() / "whole", 0).texts();
  CATCH_CHECK(expected[0] != expected[1]);  // of generators
  std::int64_t at = 1;
  for (;; ++at) {
    CATCH_CAPTURE(at);
    const auto checkpoints = folder.path() / std::to_string(at);
    const auto killed = run_case<TestType>(checkpoints, at);
    if (killed.all_returned()) break;
    // The other rank may see that one die before it gets there itself.
    CATCH_CHECK((WIFSIGNALED(killed[0].status) || WIFSIGNALED(killed[1].status)));
    CATCH_CHECK(run_case<TestType>(checkpoints, 0).texts() == expected);
  }
  CATCH_CHECK(at > 8);
}

std::vector<int> numbers(const std::string& text) {
  std::istringstream stream(text);
  std::vector<int> result;
  for (int number = 0; stream >> number;) result.push_back(number);
  return result;
}

/// Follows batches 0 to 11 on `count` ranks for an epoch, or `updates`. Each rank returns the targets it got.
Ranks numbered_run(int count, const std::filesystem::path& checkpoints, TrainOptions options,
                   std::optional<std::int64_t> updates = {}) {
  return run_ranks(count, [&](Rank& rank) {
    Accelerator accelerator(rank.options());
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    auto loader = numbered_loader(12);
    Tape tape;
    Trainer trainer(accelerator, model, optimizer, loader, OneWeightStep<Example>(recorded(tape)));
    options.checkpoint_dir = checkpoints;
    options.resume_from = latest;
    trainer.train({.epochs = 1, .max_steps = updates, .checkpoint_every = every_steps(1)}, options);
    std::string text;
    for (const double target : tape) text += std::to_string(static_cast<int>(target)) + " ";
    return text;
  });
}

CATCH_TEST_CASE("another number of ranks is refused by name, unless it is allowed") {
  const TemporaryDirectory folder;
  const auto checkpoints = folder.path() / "checkpoints";
  CATCH_CHECK(numbered_run(2, checkpoints, {}, 2).texts() == std::vector<std::string>{"0 2 ", "1 3 "});

  const auto refused = numbered_run(3, checkpoints, {});
  CATCH_CAPTURE(refused.report());
  CATCH_CHECK(refused.error_ids() ==
              std::vector<std::string>(3, "checkpoint-does-not-fit"));
  CATCH_CHECK_THAT(refused[1].text, Contains("world_size is 2, here 3"));

  const auto allowed = numbered_run(3, checkpoints, {.resume_world_size = allow}, 4).texts();
  CATCH_CHECK(allowed == std::vector<std::string>{"4 7 ", "5 8 ", "6 9 "});
  // At batch 10, which is no multiple of four.
  CATCH_CHECK(numbered_run(4, checkpoints, {.resume_world_size = allow}).texts() ==
              std::vector<std::string>{"10 ", "11 ", "", ""});
}

CATCH_TEST_CASE("other slices than before are said to cost the last bits") {
  const TemporaryDirectory folder;
  const auto run = [&](std::int64_t slice_bytes, std::int64_t updates) {
    return run_ranks(2, [&](Rank& rank) {
      auto settings = Mlp().settings();
      settings.accelerator.launch = rank.launch();
      settings.accelerator.slice_bytes = slice_bytes;
      settings.config.max_steps = updates;
      testing::CaseRun<Mlp> run(Mlp(), settings);
      run.train({.checkpoint_dir = folder.path() / "checkpoints", .resume_from = latest});
      return std::to_string(run.trainer().state().step);
    });
  };
  CATCH_CHECK(run(64, 2).same_text() == "2");
  const auto resumed = run(1 << 20, 3);
  CATCH_CHECK(resumed.same_text() == "3");
  CATCH_CHECK_THAT(resumed[0].output, Contains("slice_layout was ["));
  CATCH_CHECK_THAT(run(1 << 20, 4)[0].output, !Contains("slice_layout"));
}

CATCH_TEST_CASE("one rank goes on with what several have saved") {
  const TemporaryDirectory folder;
  const auto checkpoints = folder.path() / "checkpoints";
  (void)numbered_run(2, checkpoints, {}, 4).texts();
  const auto rest = numbered_run(1, checkpoints, {.resume_world_size = allow}).texts().front();
  CATCH_CHECK(numbers(rest) == std::vector<int>{8, 9, 10, 11});
}

CATCH_TEST_CASE("a signal to one rank stops all of them at the same update, for the same reason") {
  const TemporaryDirectory folder;
  const auto run = [&](bool with_signal) {
    return run_ranks(3, [&](Rank& rank) {
      Accelerator accelerator(rank.options());
      OneWeight model;
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
      Batches source = numbered_batches(24);
      int calls = 0;
      Trainer trainer(accelerator, model, optimizer, source, Step([&](OneWeight& weight, const at::Tensor& batch) {
                        if (with_signal && rank.number == 1 && ++calls == 3) ::raise(SIGTERM);
                        return ledger(weight, batch);
                      }));
      StopRequest stop;
      const auto signals = stop.catch_signals();
      const auto state =
          trainer.train({.epochs = 1}, {.checkpoint_dir = folder.path() / "checkpoints", .resume_from = latest, .stop = &stop});
      return std::to_string(state.step) + " " + state.stop_reason.value_or("finished");
    });
  };
  CATCH_CHECK(run(true).same_text() == "3 SIGTERM");
  CATCH_CHECK(run(false).same_text() == "8 finished");
}

CATCH_TEST_CASE("patience ends all ranks at the same evaluation, judged by the set as a whole") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Accelerator accelerator(rank.options());
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(24);
    Batches set = numbered_batches(2);
    // Of rank 0: 1.0, 0.9, 0.8, ...; of rank 1: 1.0, 1.3, 1.6, ...; together they get worse.
    Evaluator evaluator(accelerator, {{"validation", set}}, Step([&](OneWeight& weight, const at::Tensor&) -> StepOutput {
                          const double update = -weight.value() - 1;
                          const double value = rank.number == 0 ? 1 - 0.1 * update : 1 + 0.3 * update;
                          return {.loss = weight.w * 0 + value, .num_samples = 1};
                        }));
    Trainer trainer(accelerator, model, optimizer, source, Step(ledger), {.evaluator = &evaluator});
    const auto state = trainer.train({.epochs = 1,
                                      .evaluate_every = every_steps(1),
                                      .monitor = Monitor("validation/loss", {.patience = 2})});
    return std::to_string(state.step) + " " + to_string(state.end) + " best at " + std::to_string(*state.best_step);
  });
  CATCH_CHECK(ranks.same_text() == "3 early_stop best at 1");
}

CATCH_TEST_CASE("each checkpoint holds a file for every rank, whichever is the slower one") {
  const TemporaryDirectory folder;
  const auto checkpoints = folder.path() / "checkpoints";
  const auto ranks = run_ranks(3, [&](Rank& rank) {
    Accelerator accelerator(rank.options());
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(30);
    int calls = 0;
    Trainer trainer(accelerator, model, optimizer, source, Step([&](OneWeight& weight, const at::Tensor& batch) {
                      if (++calls % 3 == rank.number) ::usleep(3000);
                      return ledger(weight, batch);
                    }));
    for (std::int64_t step = 1; step <= 10; ++step) {
      trainer.train({.max_steps = step, .checkpoint_every = every_steps(1)}, {.checkpoint_dir = checkpoints});
      // When train() returns, every rank sees it.
      for (int other = 0; other < 3; ++other) {
        if (!std::filesystem::exists(checkpoints / "last" / ("rank-0000" + std::to_string(other) + ".safetensors"))) {
          return "no file of rank " + std::to_string(other) + " at step " + std::to_string(step);
        }
      }
    }
    return std::string("all there");
  });
  CATCH_CHECK(ranks.same_text() == "all there");
}

}  // namespace
}  // namespace lockstep::test
