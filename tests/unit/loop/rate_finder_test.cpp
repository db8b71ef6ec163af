#include "lockstep/loop/rate_finder.hpp"

#include <cmath>
#include <limits>

#include "support/fixtures.hpp"
#include "support/ranks.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Parts {
  explicit Parts(const LaunchOptions& launch = {})
      : accelerator({.precision = Precision::fp64,
                     .device = at::kCPU,
                     .launch = launch,
                     .rank_timeout = std::chrono::seconds(20)}) {}

  Accelerator accelerator;
  OneWeight model;
  torch::optim::SGD optimizer{model.parameters(), torch::optim::SGDOptions(0.5)};
};

/// (1 - w)^2 / 2: an update of rate r takes w by r of the way to 1.
constexpr auto towards_one = [](OneWeight& model, const at::Tensor&) -> StepOutput {
  return {.loss = (1 - model.w).square() / 2, .num_samples = 1};
};

/// Points whose rates are their numbers.
RateCurve curve_of(const std::vector<double>& losses) {
  RateCurve curve;
  for (std::size_t i = 0; i < losses.size(); ++i) curve.points.push_back({static_cast<double>(i), losses[i]});
  return curve;
}

/// A net with everything that has state, trained after the finder or without it.
class StatefulRun {
 public:
  explicit StatefulRun(std::unique_ptr<torch::optim::Optimizer> (*make)(const torch::nn::Module&)) : optimizer(make(*net)) {}

  [[nodiscard]] RateCurve find() { return find_rate(accelerator, net, *optimizer, loader, step, {.max_lr = 10, .updates = 12}); }

  /// Weights and buffers after a run, and what the generator gives then.
  std::vector<at::Tensor> train(auto before, auto between) {
    before(*this);
    Trainer trainer(accelerator, net, *optimizer, loader, step);
    between(*this);
    trainer.train({.epochs = 2, .checkpoint_every = {}});
    std::vector<at::Tensor> values;
    for (const auto& tensor : module_state(*net)) values.push_back(tensor.second.clone());
    values.push_back(torch::rand({2}));
    return values;
  }

  Accelerator accelerator{{.seed = 3, .device = at::kCPU}};
  torch::nn::Sequential net{torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Dropout(0.5),
                            torch::nn::Linear(4, 1)};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  DataLoader<TensorDataset> loader{TensorDataset(torch::randn({12, 3}), torch::randn({12, 1})),
                                   {.batch_size = 4, .shuffle = true}};

  static StepOutput step(torch::nn::SequentialImpl& model, const Example& batch) {
    return {.loss = at::mse_loss(model.forward(batch.data), batch.target), .num_samples = batch.data.size(0)};
  }
};

bool equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) { return torch::equal(x, y); });
}

}  // namespace

CATCH_TEST_CASE("the rate grows by the same factor from update to update, and the loss is smoothed from the first on") {
  Parts parts;
  auto source = numbered_batches(2);
  const auto curve = find_rate(parts.accelerator, parts.model, parts.optimizer, source, towards_one,
                               {.min_lr = 0.001, .max_lr = 0.1, .updates = 3});
  CATCH_REQUIRE(curve.points.size() == 3);
  CATCH_CHECK_FALSE(curve.diverged);
  double w = 0, sum = 0, weight = 0;
  const double rates[] = {0.001, 0.01, 0.1};
  for (std::size_t i = 0; i < 3; ++i) {
    CATCH_CHECK(curve.points[i].lr == Approx(rates[i]));
    // Each value weighs 0.98 of the next one.
    sum = 0.98 * sum + (1 - w) * (1 - w) / 2;
    weight = 0.98 * weight + 1;
    CATCH_CHECK(curve.points[i].loss == Approx(sum / weight));
    w += rates[i] * (1 - w);
  }
}

CATCH_TEST_CASE("a trial ends where the smoothed loss is too far above its least value") {
  Parts parts;
  auto source = numbered_batches(1);
  // From a rate of 2 on the weight overshoots by more than it was away.
  const auto curve = find_rate(parts.accelerator, parts.model, parts.optimizer, source, towards_one,
                               {.min_lr = 0.5, .max_lr = 1e4, .updates = 100});
  CATCH_CHECK(curve.diverged);
  CATCH_REQUIRE(curve.points.size() > 5);
  CATCH_CHECK(curve.points.size() < 100);
  double least = infinity;
  for (std::size_t i = 0; i + 1 < curve.points.size(); ++i) {
    least = std::min(least, curve.points[i].loss);
    CATCH_CHECK(curve.points[i].loss <= 4 * least);
  }
  CATCH_CHECK(curve.points.back().loss > 4 * least);
}

CATCH_TEST_CASE("a loss or gradient that is not finite ends a trial with the points before it") {
  const bool in_gradient = GENERATE(false, true);
  Parts parts;
  auto source = numbered_batches(1);
  std::int64_t calls = 0;
  const auto step = [&](OneWeight& model, const at::Tensor&) -> StepOutput {
    if (++calls < 4) return {.loss = model.w + 1, .num_samples = 1};
    if (in_gradient) return {.loss = (model.w - model.w.detach()).sqrt(), .num_samples = 1};
    return {.loss = model.w / 0, .num_samples = 1};
  };
  const auto curve = find_rate(parts.accelerator, parts.model, parts.optimizer, source, step);
  CATCH_CHECK(calls == 4);
  CATCH_CHECK(curve.diverged);
  CATCH_CHECK(curve.points.size() == 3);
  CATCH_CHECK(parts.model.value() == 0);
}

CATCH_TEST_CASE("the suggestion is where the loss falls fastest, without the first ten points and the last one") {
  std::vector<double> losses(10, 9.0);
  losses.insert(losses.end(), {8, 7.9, 7.5, 6.5, 6.0, 5.9, 5.9, 9, 0});
  // numpy.gradient([8, 7.9, 7.5, 6.5, 6, 5.9, 5.9, 9]) = [-0.1, -0.25, -0.7, -0.75, -0.3, -0.05, 1.55, 3.1]
  CATCH_CHECK(curve_of(losses).suggestion() == 13);
}

CATCH_TEST_CASE("there is no suggestion where the loss never falls, or the trial was too short") {
  CATCH_CHECK_FALSE(curve_of(std::vector<double>(30, 1.0)).suggestion());
  CATCH_CHECK_FALSE(curve_of({}).suggestion());
  CATCH_CHECK_FALSE(curve_of({12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1}).suggestion());
  CATCH_CHECK(curve_of({12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}).suggestion() == 10);
}

CATCH_TEST_CASE("a run after the finder is the same to the bit as one without it, whatever has state") {
  using Make = std::unique_ptr<torch::optim::Optimizer> (*)(const torch::nn::Module&);
  const Make make = GENERATE(
      Make([](const torch::nn::Module& net) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<AdamW>(weight_decay_groups(net, 0.1), AdamWOptions{.lr = 0.05});
      }),
      Make([](const torch::nn::Module& net) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<torch::optim::Adam>(net.parameters(), torch::optim::AdamOptions(0.05));
      }));
  const auto nothing = [](StatefulRun&) {};
  const auto finding = [](StatefulRun& run) { CATCH_CHECK(run.find().points.size() > 2); };
  const auto without = StatefulRun(make).train(nothing, nothing);
  CATCH_CHECK(equal(StatefulRun(make).train(finding, nothing), without));
  // A Trainer that is there already has laid out the parameters and the optimizer's state.
  CATCH_CHECK(equal(StatefulRun(make).train(nothing, finding), without));
}

CATCH_TEST_CASE("modes, rates and gradients are as before") {
  Parts parts;
  parts.model.eval();
  auto source = numbered_batches(1);
  (void)find_rate(parts.accelerator, parts.model, parts.optimizer, source, towards_one, {.updates = 4});
  CATCH_CHECK_FALSE(parts.model.is_training());
  CATCH_CHECK(parts.optimizer.param_groups()[0].options().get_lr() == 0.5);
  CATCH_CHECK_FALSE(parts.model.w.grad().defined());
  CATCH_CHECK(parts.optimizer.state().empty());
}

CATCH_TEST_CASE("an error of the Step is thrown, and everything is as before") {
  Parts parts;
  auto source = numbered_batches(1);
  std::int64_t calls = 0;
  const auto step = [&](OneWeight& model, const at::Tensor& batch) -> StepOutput {
    if (++calls == 3) throw std::runtime_error("no data");
    return towards_one(model, batch);
  };
  CATCH_CHECK_THROWS_WITH(find_rate(parts.accelerator, parts.model, parts.optimizer, source, step,
                                    {.min_lr = 0.1}),
                          "no data");
  CATCH_CHECK(parts.model.value() == 0);
}

CATCH_TEST_CASE("a Step's own to_device and backward are used") {
  struct OwnStep {
    StepOutput operator()(OneWeight& model, const at::Tensor& batch) const { return towards_one(model, batch); }
    at::Tensor to_device(const at::Tensor& batch, const Placement&) const { return ++*moved, batch; }
    void backward(const at::Tensor& loss) const { ++*passes, loss.backward(); }
    int* moved;
    int* passes;
  };
  Parts parts;
  auto source = numbered_batches(1);
  int moved = 0, passes = 0;
  (void)find_rate(parts.accelerator, parts.model, parts.optimizer, source, OwnStep{&moved, &passes}, {.updates = 5});
  CATCH_CHECK(moved == 5);
  CATCH_CHECK(passes == 5);
}

CATCH_TEST_CASE("settings of the finder that cannot work are refused together") {
  Parts parts;
  auto source = numbered_batches(1);
  try {
    (void)find_rate(parts.accelerator, parts.model, parts.optimizer, source, towards_one,
                    {.min_lr = 0, .max_lr = -1, .updates = 1, .divergence = 1});
    CATCH_FAIL("nothing was thrown");
  } catch (const ConfigError& error) {
    CATCH_CHECK(error.id() == "invalid-settings");
    for (const auto* setting : {"min_lr", "max_lr", "updates", "divergence"}) {
      CATCH_CHECK_THAT(error.what(), Catch::Matchers::Contains(std::string("find_rate's ") + setting));
    }
  }
}

CATCH_TEST_CASE("the finder refuses a model that is not there") {
  Parts parts;
  const Batches source = numbered_batches(1);
  const std::shared_ptr<OneWeight> null;
  CATCH_CHECK(thrown_id<Error>([&] { (void)find_rate(parts.accelerator, null, parts.optimizer, source, ledger); }) ==
              "null-model");
}

CATCH_TEST_CASE("two ranks find the curve that one finds on all batches") {
  const auto follow_from = [](Parts& parts, Batches source) {
    const auto curve = find_rate(parts.accelerator, parts.model, parts.optimizer, source, follow,
                                 {.min_lr = 0.01, .max_lr = 1, .updates = 4, .divergence = 100});
    std::string text = curve.diverged ? "diverged" : "";
    for (const auto& [lr, loss] : curve.points) text += " " + std::to_string(lr) + ":" + std::to_string(loss);
    return text;
  };
  const auto ranks = run_ranks(2, [&](Rank& rank) {
    Parts parts(rank.launch());
    return follow_from(parts, batches({{1}, {2, 3, 4}, {5}, {6}}));
  });
  CATCH_CAPTURE(ranks.report());
  Parts alone;
  CATCH_CHECK(ranks.same_text() == follow_from(alone, batches({{1, 2, 3, 4}, {5, 6}})));
}

CATCH_TEST_CASE("a loss that is not finite on one rank ends the trial on all") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    Parts parts(rank.launch());
    auto source = numbered_batches(2);
    std::int64_t calls = 0;
    const auto step = [&](OneWeight& model, const at::Tensor& batch) -> StepOutput {
      auto output = towards_one(model, batch);
      if (++calls == 3 && rank.number == 1) output.loss = output.loss * std::nan("");
      return output;
    };
    const auto curve = find_rate(parts.accelerator, parts.model, parts.optimizer, source, step);
    return std::to_string(curve.points.size()) + (curve.diverged ? " diverged" : "") + " " +
           std::to_string(parts.model.value());
  });
  CATCH_CAPTURE(ranks.report());
  CATCH_CHECK(ranks.same_text() == "3 diverged 0.000000");
}
