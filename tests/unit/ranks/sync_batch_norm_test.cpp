#include "lockstep/ranks/sync_batch_norm.hpp"

#include "lockstep/lockstep.hpp"
#include "lockstep/testing.hpp"
#include "support/catch.hpp"
#include "support/ranks.hpp"
#include "support/throws.hpp"

namespace lockstep::test {
namespace {

/// Samples of rank r of three: unequal.
constexpr std::int64_t samples[] = {3, 1, 4};

at::Tensor joined_input(std::vector<std::int64_t> rest, int ranks, std::int64_t round) {
  std::int64_t count = 0;
  for (int rank = 0; rank < ranks; ++rank) count += samples[rank];
  rest.insert(rest.begin(), count);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(5 + round));
  return torch::randn(rest, generator, torch::kDouble) * 3 + 100;
}

std::int64_t begin_of(int rank) {
  std::int64_t begin = 0;
  for (int before = 0; before < rank; ++before) begin += samples[before];
  return begin;
}

double distance(const at::Tensor& one, const at::Tensor& other) {
  return ((one - other).abs().max() / other.abs().max()).item<double>();
}

at::Tensor sum_over_ranks(Accelerator& accelerator, at::Tensor tensor) {
  tensor = tensor.clone();
  accelerator.collectives().sum(tensor)->wait();
  return tensor;
}

/// The largest difference, in two rounds, of outputs, gradients and buffers from one BatchNorm over the joined batch.
template <class BatchNorm>
std::string compared(Rank& rank, const std::vector<std::int64_t>& rest, torch::nn::BatchNormOptions options) {
  Accelerator accelerator(rank.options());
  BatchNorm theirs(options);
  SyncBatchNorm ours(accelerator, options);
  theirs->to(at::kDouble);
  ours->to(at::kDouble);
  const torch::NoGradGuard outer;
  if (options.affine()) {
    for (auto* weight : {&theirs->weight, &ours->weight}) weight->copy_(torch::linspace(0.5, 2, 5, at::kDouble));
    for (auto* bias : {&theirs->bias, &ours->bias}) bias->copy_(torch::linspace(-1, 1, 5, at::kDouble));
  }
  double worst = 0;
  const auto check = [&](const at::Tensor& one, const at::Tensor& other) { worst = std::max(worst, distance(one, other)); };
  for (std::int64_t round = 0; round < 2; ++round) {
    const torch::AutoGradMode on(true);
    const auto whole = joined_input(rest, rank.world_size, round).set_requires_grad(true);
    const auto begin = begin_of(rank.number);
    const auto part = [&](const at::Tensor& tensor) { return tensor.narrow(0, begin, samples[rank.number]); };
    const auto own = part(whole.detach()).clone().set_requires_grad(true);
    const auto factors = torch::cos(whole.detach());  // a gradient that differs everywhere
    theirs->zero_grad();
    ours->zero_grad();
    const auto expected = theirs->forward(whole);
    (expected * factors).sum().backward();
    const auto output = ours->forward(own);
    (output * part(factors)).sum().backward();
    check(output.detach(), part(expected.detach()));
    check(own.grad(), part(whole.grad()));
    if (options.affine()) {
      check(sum_over_ranks(accelerator, ours->weight.grad()), theirs->weight.grad());
      check(sum_over_ranks(accelerator, ours->bias.grad()), theirs->bias.grad());
    }
    if (options.track_running_stats()) {
      check(ours->running_mean, theirs->running_mean);
      check(ours->running_var, theirs->running_var);
      if (!ours->num_batches_tracked.equal(theirs->num_batches_tracked)) return "another count of batches";
    }
  }
  ours->eval();
  theirs->eval();
  if (options.track_running_stats()) {
    const auto input = joined_input(rest, 1, 7);
    check(ours->forward(input), theirs->forward(input));
  }
  return worst < 1e-11 ? "equal" : "differs by " + testing::text_of(worst);
}

CATCH_TEST_CASE("ranks normalise as one batch norm over the joined batch, forward and backward") {
  using Options = torch::nn::BatchNormOptions;
  for (const int ranks : {2, 3}) {
    CATCH_CHECK(run_ranks(ranks, [](Rank& rank) {
                  return compared<torch::nn::BatchNorm1d>(rank, {5}, Options(5));
                }).same_text() == "equal");
    CATCH_CHECK(run_ranks(ranks, [](Rank& rank) {
                  return compared<torch::nn::BatchNorm1d>(rank, {5, 2}, Options(5).momentum(std::nullopt));
                }).same_text() == "equal");
    CATCH_CHECK(run_ranks(ranks, [](Rank& rank) {
                  return compared<torch::nn::BatchNorm2d>(rank, {5, 2, 3}, Options(5).momentum(0.3).eps(1e-3));
                }).same_text() == "equal");
    CATCH_CHECK(run_ranks(ranks, [](Rank& rank) {
                  return compared<torch::nn::BatchNorm3d>(rank, {5, 2, 3, 2},
                                                          Options(5).affine(false).track_running_stats(false));
                }).same_text() == "equal");
  }
}

CATCH_TEST_CASE("with one rank a SyncBatchNorm is Torch's") {
  Accelerator accelerator({.device = at::kCPU});
  SyncBatchNorm ours(accelerator, torch::nn::BatchNormOptions(3));
  torch::nn::BatchNorm2d theirs(3);
  const auto input = torch::randn({4, 3, 2, 2});
  CATCH_CHECK(ours->forward(input).equal(theirs->forward(input)));
  CATCH_CHECK(ours->running_var.equal(theirs->running_var));
  CATCH_CHECK(ours->num_batches_tracked.item<std::int64_t>() == 1);
}

CATCH_TEST_CASE("a SyncBatchNorm takes statistics of half types in float, and answers in their type") {
  CATCH_CHECK(run_ranks(2, [](Rank& rank) {
                Accelerator accelerator(rank.options());
                SyncBatchNorm norm(accelerator, torch::nn::BatchNormOptions(2));
                const auto input = torch::tensor({{1.0f, 8.0f}, {3.0f, 2.0f}}) + 4 * rank.number;
                const auto exact = norm->forward(input);
                const auto half = norm->forward(input.to(at::kBFloat16));
                return std::string(half.scalar_type() == at::kBFloat16 && half.equal(exact.to(at::kBFloat16)) ? "equal" : "no");
              }).same_text() == "equal");
}

CATCH_TEST_CASE("batch norms in a Sequential are exchanged, with their tensors, mode and names") {
  struct Net : torch::nn::Module {
    Net() {
      first = register_module("first", torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::BatchNorm1d(3)));
      second = register_module("second", torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3)));
    }
    torch::nn::Sequential first{nullptr}, second{nullptr};
  };
  Accelerator accelerator({.device = at::kCPU});
  const auto net = std::make_shared<Net>();
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& tensor : module_state(*net)) all.push_back(tensor.first);
    return all;
  };
  const auto before = names();
  const auto weight = net->named_parameters()["first.1.weight"];
  net->second->ptr(1)->eval();
  convert_sync_batch_norm(*net, accelerator);
  CATCH_CHECK(names() == before);
  CATCH_CHECK(net->named_parameters()["first.1.weight"].is_same(weight));
  CATCH_CHECK(dynamic_cast<SyncBatchNormImpl*>(net->first->ptr(1).get()) != nullptr);
  CATCH_CHECK(dynamic_cast<SyncBatchNormImpl*>(net->second->ptr(1).get()) != nullptr);
  CATCH_CHECK(net->first->ptr(1)->is_training());
  CATCH_CHECK_FALSE(net->second->ptr(1)->is_training());
  CATCH_CHECK(detail::has_sync_batch_norm(*net));
  (void)net->first->forward(torch::randn({4, 2}));
  CATCH_CHECK(net->named_buffers()["first.1.num_batches_tracked"].item<std::int64_t>() == 1);
}

CATCH_TEST_CASE("a batch norm that a class holds as a member is refused by name, and nothing is exchanged") {
  struct Net : torch::nn::Module {
    Net() {
      layers = register_module("layers", torch::nn::Sequential(torch::nn::BatchNorm1d(3)));
      norm = register_module("norm", torch::nn::BatchNorm1d(3));
    }
    torch::nn::Sequential layers;
    torch::nn::BatchNorm1d norm{nullptr};
  };
  Accelerator accelerator({.device = at::kCPU});
  auto net = std::make_shared<Net>();
  try {
    convert_sync_batch_norm(*net, accelerator);
    CATCH_FAIL("nothing was thrown");
  } catch (const ConfigError& error) {
    CATCH_CHECK(error.id() == "invalid-settings");
    CATCH_CHECK_THAT(error.what(), Catch::Matchers::Contains("\"norm\" is no part of a torch::nn::Sequential"));
  }
  CATCH_CHECK_FALSE(detail::has_sync_batch_norm(*net));
}

CATCH_TEST_CASE("an input of other features is refused") {
  const auto ranks = run_ranks(2, [](Rank& rank) -> std::string {
    Accelerator accelerator(rank.options());
    SyncBatchNorm norm(accelerator, torch::nn::BatchNormOptions(2));
    (void)norm->forward(torch::ones({4, 3}));
    return "forwarded";
  });
  CATCH_CHECK(ranks.error_ids() == std::vector<std::string>(2, "sync-batch-norm-input"));
}

/// Trains a model with synchronised statistics on a data set of this size; its weights as text.
std::string trained(Rank& rank, std::int64_t size, std::int64_t batch_size, bool one_rank, bool fails = false) {
  auto options = rank.options();
  if (one_rank) options.launch = {.rank = 0, .world_size = 1};
  options.seed = 2;
  Accelerator accelerator(options);
  torch::nn::Sequential model(torch::nn::Linear(3, 4), SyncBatchNorm(accelerator, torch::nn::BatchNormOptions(4)),
                              torch::nn::Linear(4, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto generator = at::make_generator<at::CPUGeneratorImpl>(7);
  const auto data = torch::randn({size, 3}, generator, torch::kDouble);
  DataLoader loader(TensorDataset(data, data.sum(1)), {.batch_size = batch_size});
  int calls = 0;
  Trainer trainer(accelerator, model, optimizer, loader, [&](torch::nn::SequentialImpl& net, const Example& batch) {
    if (fails && rank.number == 1 && ++calls == 3) throw std::runtime_error("a leaf fell");
    return StepOutput{.loss = (net.forward(batch.data).squeeze(1) - batch.target).square().mean(),
                      .num_samples = batch.data.size(0)};
  });
  trainer.train({.epochs = 4});
  std::string text;
  for (const auto& parameter : model->parameters()) {
    for (std::int64_t i = 0; i < parameter.numel(); ++i) {
      text += testing::text_of(std::round(parameter.view({-1})[i].item<double>() * 1e9) / 1e9) + " ";
    }
  }
  return text;
}

CATCH_TEST_CASE("two ranks with synchronised statistics train as one rank with batches as large") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    const auto two = trained(rank, 16, 2, false);
    return two == trained(rank, 16, 4, true) ? "equal: " + two : "differ: " + two + " / " + trained(rank, 16, 4, true);
  });
  CATCH_CHECK_THAT(ranks.same_text(), Catch::Matchers::StartsWith("equal: "));
}

CATCH_TEST_CASE("ranks that would have unequal numbers of batches are refused before they wait for each other") {
  const auto ranks = run_ranks(2, [](Rank& rank) { return trained(rank, 6, 2, false); });
  CATCH_CHECK(ranks.error_ids() == std::vector<std::string>(2, "sync-batch-norm-uneven"));
}

CATCH_TEST_CASE("a rank that fails in its Step does not leave the others waiting for its statistics") {
  const auto ranks = run_ranks(2, [](Rank& rank) { return trained(rank, 16, 2, false, true); });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks[0].error_id.starts_with("rank-"));
  CATCH_CHECK_THAT(ranks[0].text, Catch::Matchers::Contains("a leaf fell"));
  CATCH_CHECK(ranks[1].text == "a leaf fell");
  CATCH_CHECK(ranks[0].after < std::chrono::seconds(15));
}

}  // namespace
}  // namespace lockstep::test
