// Failures of other training loops with the update of several ranks.
#include <ATen/record_function.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <iterator>
#include <sstream>

#include "lockstep/testing/record.hpp"
#include "support/catch.hpp"
#include "support/fixtures.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

std::string text_of(const Tape& tape) {
  std::string text;
  for (const double value : tape) text += testing::text_of(value) + " ";
  return text;
}

std::vector<double> numbers_of(const std::string& text) {
  std::istringstream words(text);
  return {std::istream_iterator<double>(words), std::istream_iterator<double>()};
}

const torch::optim::SGDOptions unit_rate(1.0);

struct Two : torch::nn::Module {
  explicit Two(double start = 0) {
    a = register_parameter("a", torch::full({}, start, torch::kDouble));
    b = register_parameter("b", torch::full({}, start, torch::kDouble));
  }
  [[nodiscard]] std::string text() const { return text_of({a.item<double>(), b.item<double>()}); }

  at::Tensor a, b;
};
using TwoStep = std::function<StepOutput(Two&, const at::Tensor&)>;

using TwoLoss = std::function<at::Tensor(Two&, std::int64_t update)>;

const at::Tensor& only_a(Two& model, std::int64_t) { return model.a; }

/// a and b after each update. `loss` is asked once an update, on a batch of one sample.
std::string train_two(Rank& rank, Two& model, torch::optim::Optimizer& optimizer, std::int64_t updates,
                      const TwoLoss& loss) {
  Accelerator accelerator(rank.options());
  Batches source = numbered_batches(updates * rank.world_size);
  std::int64_t calls = 0;
  const TwoStep step = [&](Two& two, const at::Tensor&) -> StepOutput {
    return {.loss = loss(two, calls++), .num_samples = 1};
  };
  Trainer trainer(accelerator, model, optimizer, source, step);
  std::string after_each;
  for (std::int64_t update = 1; update <= updates; ++update) {
    (void)trainer.train({.epochs = 1, .max_steps = update});
    after_each += model.text();
  }
  return after_each;
}

/// The same with SGD of rate 1 from zero. With b frozen, the optimizer holds only a.
std::string train_two(Rank& rank, bool b_frozen, std::int64_t updates, const TwoLoss& loss) {
  Two model;
  model.b.set_requires_grad(!b_frozen);
  torch::optim::SGD optimizer(b_frozen ? std::vector{model.a} : model.parameters(), unit_rate);
  return train_two(rank, model, optimizer, updates, loss);
}

/// Each gradient is the number of the batch, so that every rank alone would go elsewhere.
StepOutput numbered_gradients(Two& model, const at::Tensor& batch) {
  return {.loss = (model.a + model.b) * batch.sum(), .num_samples = 1};
}

CATCH_TEST_CASE("a term of the loss that is no mean over samples keeps its size on any number of ranks",
                "[T-05]") {
  const int count = GENERATE(1, 2, 4);
  const auto ranks = run_ranks(count, [](Rank& rank) {
    const auto regularised = [](OneWeight& model, const at::Tensor& batch) {
      auto output = follow(model, batch);
      output.loss = output.loss + 0.1 * model.w;
      return output;
    };
    const Batches one_each(static_cast<std::size_t>(rank.world_size), torch::tensor({0, 2}, torch::kDouble));
    OneWeightRun run(one_each, regularised, {.launch = rank.launch()});
    const auto state = run.trainer.train({.epochs = 1});
    return text_of({run.w(), static_cast<double>(state.step)});
  });
  const auto numbers = numbers_of(ranks.same_text());
  CATCH_CHECK(numbers.at(0) == Approx(0.9).epsilon(1e-12));
  CATCH_CHECK(numbers.at(1) == 1);
}

CATCH_TEST_CASE("the schedule advances once an update, however many ranks make it", "[T-14]") {
  const int count = GENERATE(1, 2, 4);
  const auto ranks = run_ranks(count, [](Rank& rank) {
    Tape before_each;
    const auto step = [&before_each](OneWeight& model, const at::Tensor& batch) {
      before_each.push_back(model.value());
      return ledger(model, batch);
    };
    OneWeightRun run(numbered_batches(4 * rank.world_size), step, {.launch = rank.launch()});
    run.trainer.set_scheduler(
        WarmupDecay{.total_steps = 4, .warmup_steps = 2, .decay = WarmupDecay::Decay::linear});
    (void)run.trainer.train({.epochs = 1});
    before_each.push_back(run.w());
    return text_of(before_each);
  });
  // Rates 0, 0.5, 1, 0.5.
  CATCH_CHECK(ranks.same_text() == "0 0 -0.5 -1.5 -2 ");
}

CATCH_TEST_CASE("parameters that are trained only later are the same on all ranks", "[T-85]") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Accelerator accelerator(rank.options());
    Two model;
    std::string after_each;
    const auto part = [&](bool b_frozen, std::int64_t updates) {
      model.b.set_requires_grad(!b_frozen);
      torch::optim::SGD optimizer(std::vector{model.a}, unit_rate);
      if (!b_frozen) optimizer.add_param_group(torch::optim::OptimizerParamGroup({model.b}));
      Batches source = numbered_batches(2 * updates);
      Trainer trainer(accelerator, model, optimizer, source, TwoStep(numbered_gradients));
      for (std::int64_t update = 1; update <= updates; ++update) {
        (void)trainer.train({.epochs = 1, .max_steps = update});
        after_each += model.text();
      }
    };
    part(true, 2);
    part(false, 3);
    part(true, 1);
    return after_each;
  });
  // Means of the batches 0 1, 2 3, 4 5: 0.5, 2.5, 4.5.
  CATCH_CHECK(ranks.same_text() == "-0.5 0 -3 0 -3.5 -0.5 -6 -3 -10.5 -7.5 -11 -7.5 ");
}

CATCH_TEST_CASE("a parameter that is frozen and trained again under one Trainer is the same on all ranks",
                "[T-85]") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Accelerator accelerator(rank.options());
    Two model;
    torch::optim::SGD optimizer(model.parameters(), unit_rate);
    Batches source = numbered_batches(8);
    model.b.set_requires_grad(false);
    Trainer trainer(accelerator, model, optimizer, source, TwoStep(numbered_gradients));
    std::string after_each;
    for (std::int64_t update = 1; update <= 4; ++update) {
      model.b.set_requires_grad(update == 2 || update == 3);
      (void)trainer.train({.epochs = 1, .max_steps = update});
      after_each += model.text();
    }
    return after_each;
  });
  CATCH_CHECK(ranks.same_text() == "-0.5 0 -3 -2.5 -7.5 -7 -14 -7 ");
}

CATCH_TEST_CASE("a parameter that no rank trains stays as it is, and holds up nobody", "[T-86]") {
  const bool frozen = GENERATE(true, false);
  const auto ranks = run_ranks(2, [&](Rank& rank) { return train_two(rank, frozen, 2, only_a); });
  CATCH_CHECK(ranks.same_text() == "-1 0 -2 0 ");
}

CATCH_TEST_CASE("weight decay leaves a parameter alone that no rank trains", "[T-86]") {
  const bool frozen = GENERATE(true, false);
  const auto ranks = run_ranks(2, [&](Rank& rank) {
    Two model(1);
    model.b.set_requires_grad(!frozen);
    torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.5));
    return train_two(rank, model, optimizer, 1, only_a);
  });
  const auto numbers = numbers_of(ranks.same_text());
  CATCH_CHECK(numbers.at(0) == Approx(0.95 - 0.1));
  CATCH_CHECK(numbers.at(1) == 1);
}

CATCH_TEST_CASE("a gradient that a rank does not have counts as zero there", "[T-86]") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    return train_two(rank, false, 2, [&](Two& model, std::int64_t) {
      return rank.number == 0 ? model.a + model.b : model.a;
    });
  });
  CATCH_CHECK(ranks.same_text() == "-1 -0.5 -2 -1 ");
}

CATCH_TEST_CASE("a parameter that is used in every other update stays as it is in between", "[T-86]") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    return train_two(rank, false, 4, [](Two& model, std::int64_t update) {
      return update % 2 == 0 ? model.a + model.b : model.a;
    });
  });
  CATCH_CHECK(ranks.same_text() == "-1 -1 -2 -1 -3 -2 -4 -2 ");
}

CATCH_TEST_CASE("the gradients of all microbatches of all ranks are in the update", "[T-88]") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto times = [](OneWeight& model, const at::Tensor& factor) -> StepOutput {
      return {.loss = model.w * factor.sum(), .num_samples = 1};
    };
    // In turn: rank 0 gets 1 and 3, rank 1 gets 3 and 4.
    OneWeightRun run(batches({{1}, {3}, {3}, {4}}), times, {.accumulation = 2, .launch = rank.launch()});
    (void)run.trainer.train({.epochs = 1});
    return text_of({run.w()});
  });
  CATCH_CHECK(ranks.same_text() == "-2.75 ");
}

/// Sums over two ranks that were started since the process began: each receives what the other has.
std::atomic<std::int64_t>& sums() {
  static std::atomic<std::int64_t> count{0};
  return count;
}

void count_sums() {
  at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& function) {
                          if (std::strcmp(function.name(), "gloo:recv") == 0) ++sums();
                          return std::unique_ptr<at::ObserverContext>();
                        }).scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

struct DoubleMlp : torch::nn::Module {
  DoubleMlp() { to(torch::kDouble); }
  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in = register_module("in", torch::nn::Linear(3, 8));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(8, 1));
};

/// How often gradients were summed in ten updates, and then the weights.
std::string train_mlp(Rank& rank, std::int64_t accumulation, std::int64_t batch_size) {
  auto options = rank.options();
  options.gradient_accumulation_steps = accumulation;
  options.seed = 3;
  options.slice_bytes = 1;  // or the sum would go with the vote
  Accelerator accelerator(options);
  DoubleMlp model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.1));
  at::manual_seed(5);
  const auto x = torch::randn({160, 3}, torch::kDouble);
  DataLoader loader(TensorDataset(x, x.square().sum(1, /*keepdim=*/true)), {.batch_size = batch_size});
  const auto step = [](DoubleMlp& net, const Example& batch) -> StepOutput {
    return {.loss = at::mse_loss(net.forward(batch.data), batch.target), .num_samples = batch.data.size(0)};
  };
  Trainer trainer(accelerator, model, optimizer, loader, step);
  count_sums();
  const auto state = trainer.train({.epochs = 1});
  std::string text = std::to_string(sums()) + " " + std::to_string(state.step);
  for (const auto& parameter : model.parameters()) {
    const auto flat = parameter.detach().flatten();
    for (std::int64_t i = 0; i < flat.numel(); ++i) text += " " + testing::text_of(flat[i].item<double>());
  }
  return text;
}

CATCH_TEST_CASE("microbatches change neither the update nor the number of sums over ranks", "[T-89]") {
  const auto whole = numbers_of(run_ranks(2, [](Rank& rank) { return train_mlp(rank, 1, 8); }).same_text());
  const auto pieces = numbers_of(run_ranks(2, [](Rank& rank) { return train_mlp(rank, 4, 2); }).same_text());
  CATCH_REQUIRE(whole.size() == 2 + 3 * 8 + 8 + 8 + 1);
  CATCH_REQUIRE(pieces.size() == whole.size());
  CATCH_CHECK(whole[0] == 10 * 4);
  CATCH_CHECK(pieces[0] == 10 * 4);
  CATCH_CHECK(whole[1] == 10);
  CATCH_CHECK(pieces[1] == 10);
  for (std::size_t i = 2; i < whole.size(); ++i) CATCH_CHECK(std::abs(pieces[i] - whole[i]) <= 1e-12);
}

}  // namespace
}  // namespace lockstep::test
