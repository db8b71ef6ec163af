#include "lockstep/loop/optimizer_step.hpp"

#include <cmath>

#include "support/fixtures.hpp"
#include "support/throws.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;

constexpr auto step_with_closure = [](torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  optimizer.step(closure);
};

/// Two weights with the loss of Rosenbrock's valley, which plain gradient descent hardly descends, times the mean target.
struct Valley : torch::nn::Module {
  Valley() : x(register_parameter("x", torch::full({1}, -1.0, torch::kDouble))),
             y(register_parameter("y", torch::full({1}, 1.5, torch::kDouble))) {}
  at::Tensor x, y;
};

StepOutput valley(Valley& model, const at::Tensor& targets) {
  const auto height = (1 - model.x).square() + 100 * (model.y - model.x.square()).square();
  return {.loss = (height * targets.mean()).sum(), .num_samples = targets.numel()};
}

torch::optim::LBFGSOptions lbfgs() {
  return torch::optim::LBFGSOptions(1).max_iter(4).line_search_fn(std::string("strong_wolfe"));
}

/// A run of L-BFGS in the valley.
struct ValleyRun {
  explicit ValleyRun(TrainerOptions<Valley> options = {.optimizer_step = step_with_closure})
      : trainer(accelerator, model, optimizer, source, valley, options) {}

  [[nodiscard]] std::vector<double> weights() const { return {model.x.item<double>(), model.y.item<double>()}; }

  Accelerator accelerator{{.precision = Precision::fp64, .gradient_accumulation_steps = 2, .device = at::kCPU}};
  Valley model;
  torch::optim::LBFGS optimizer{model.parameters(), lbfgs()};
  Batches source = batches({{1, 2, 3}, {1}});
  Trainer<Valley, Batches, decltype(&valley)> trainer;
};

/// OneWeight under an optimizer_step, with two microbatches in a window: targets 1, 1, 1 and 5, whose mean is 2.
struct StepRun {
  explicit StepRun(TrainerOptions<OneWeight> options, OneWeightStep<at::Tensor> step = follow)
      : trainer(accelerator, model, optimizer, source, std::move(step), options) {}

  Accelerator accelerator{{.precision = Precision::fp64, .gradient_accumulation_steps = 2, .device = at::kCPU}};
  OneWeight model;
  torch::optim::SGD optimizer{model.parameters(), torch::optim::SGDOptions(1)};
  Batches source = batches({{1, 1, 1}, {5}});
  Trainer<OneWeight, Batches, OneWeightStep<at::Tensor>> trainer;
};

}  // namespace

CATCH_TEST_CASE("the closure gives the window's mean loss and gradient, at first without another pass") {
  int passes = 0;
  std::vector<double> seen;
  StepRun* started = nullptr;
  StepRun run({.optimizer_step =
                   [&](torch::optim::Optimizer& optimizer, const LossClosure& closure) {
                     seen.push_back(passes);
                     seen.push_back(closure().item<double>());
                     seen.push_back(passes);
                     seen.push_back(started->model.w.grad().item<double>());
                     optimizer.step();
                     seen.push_back(closure().item<double>());
                     seen.push_back(passes);
                     seen.push_back(started->model.w.grad().item<double>());
                   }},
              [&passes](OneWeight& model, const at::Tensor& batch) {
                ++passes;
                return follow(model, batch);
              });
  started = &run;
  const auto state = run.trainer.train({.epochs = 1});
  // At w = 0: (3 * 1 / 2 + 25 / 2) / 4, gradient -2; at w = 2: (3 * 1 / 2 + 9 / 2) / 4, gradient 0.
  CATCH_CHECK(seen == std::vector<double>{2, 3.5, 2, -2, 1.5, 4, 0});
  CATCH_CHECK(run.model.value() == 2);
  CATCH_CHECK(state.step == 1);
  CATCH_CHECK(state.batches == 2);
  CATCH_CHECK(state.samples == 4);
}

CATCH_TEST_CASE("gradients that a closure computes again are clipped like the first ones") {
  std::vector<double> seen;
  StepRun* started = nullptr;
  StepRun run({.optimizer_step = [&](torch::optim::Optimizer&, const LossClosure& closure) {
    for (int i = 0; i < 2; ++i) {
      (void)closure();
      seen.push_back(started->model.w.grad().item<double>());
    }
  }});
  started = &run;
  run.trainer.train({.epochs = 1, .max_grad_value = 0.5});
  CATCH_CHECK(seen == std::vector<double>{-0.5, -0.5});
}

CATCH_TEST_CASE("our own optimizers and averaged weights follow an optimizer_step") {
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  OneWeight model;
  SGD optimizer(weight_decay_groups(model, 0), {.lr = 1});
  Batches source = batches({{2}, {4}});
  Trainer trainer(accelerator, model, optimizer, source, OneWeightStep<at::Tensor>(follow),
                  {.ema_decay = 0.5, .optimizer_step = step_with_closure});
  trainer.train({.epochs = 1});
  CATCH_CHECK(model.value() == 4);
  // 0, then half of the way to 2, then half of the way to 4.
  CATCH_CHECK(trainer.weights(Weights::ema).at(0).second.item<double>() == 2.5);
}

CATCH_TEST_CASE("hooks that may change gradients are called at each evaluation of a closure") {
  int clips = 0;
  int losses = 0;
  HookFunctions hook;
  hook.before_clip = [&](Run&) { ++clips; };
  hook.after_loss = [&](Run&, const StepOutput&) { ++losses; };
  StepRun run({.optimizer_step =
                   [](torch::optim::Optimizer& optimizer, const LossClosure& closure) {
                     (void)closure();
                     (void)closure();
                     optimizer.step();
                   },
               .hooks = hook});
  run.trainer.train({.epochs = 1});
  CATCH_CHECK(clips == 2);
  CATCH_CHECK(losses == 2);
}

CATCH_TEST_CASE("L-BFGS goes down a valley, and stopped after any update goes on to the bit") {
  ValleyRun straight;
  straight.trainer.train({.epochs = 12});
  CATCH_CHECK(straight.weights()[0] == Approx(1).epsilon(1e-6));
  for (const std::int64_t stop : {1, 2, 5}) {
    CATCH_CAPTURE(stop);
    const TemporaryDirectory folder;
    {
      ValleyRun first;
      first.trainer.train({.max_steps = stop}, {.checkpoint_dir = folder.path()});
    }
    ValleyRun second;
    second.trainer.train({.max_steps = 7}, {.checkpoint_dir = folder.path(), .resume_from = latest});
    ValleyRun whole;
    whole.trainer.train({.max_steps = 7});
    CATCH_CHECK(second.weights() == whole.weights());
  }
}

CATCH_TEST_CASE("an evaluation that fails leaves parameters and L-BFGS's state as before the window") {
  for (const int failing : {5, 6, 9}) {
    CATCH_CAPTURE(failing);
    int calls = 0;
    bool fails = false;
    ValleyRun run({.optimizer_step = [&](torch::optim::Optimizer& optimizer, const LossClosure& closure) {
      optimizer.step([&] {
        const auto loss = closure();
        if (fails && ++calls == failing) throw std::runtime_error("enough");
        return loss;
      });
    }});
    run.trainer.train({.max_steps = 3});
    const auto before = run.weights();
    fails = true;
    CATCH_CHECK_THROWS_WITH(run.trainer.train({.max_steps = 20}), "enough");
    const auto update = run.trainer.state().step;
    ValleyRun whole;
    whole.trainer.train({.max_steps = update});
    CATCH_CHECK(run.weights() == whole.weights());
    fails = false;
    run.trainer.train({.max_steps = 8});
    whole.trainer.train({.max_steps = 8});
    CATCH_CHECK(run.weights() == whole.weights());
    CATCH_CHECK(run.weights() != before);
  }
}

CATCH_TEST_CASE("a loss that is not finite at a later evaluation ends the run, also where user code catches it") {
  StepRun run({.optimizer_step =
                   [](torch::optim::Optimizer& optimizer, const LossClosure& closure) {
                     optimizer.step();
                     try {
                       (void)closure();
                       (void)closure();
                     } catch (const Error&) {
                       // An optimizer's way to go back from a step that is too long.
                     }
                   }},
              [](OneWeight& model, const at::Tensor& batch) -> StepOutput {
                auto output = follow(model, batch);
                if (model.value() != 0) output.loss = output.loss * std::nan("");
                return output;
              });
  CATCH_CHECK_THROWS_WITH(run.trainer.train({.epochs = 1}), Contains("non-finite-loss"));
  CATCH_CHECK(run.model.value() == 0);
  CATCH_CHECK(run.trainer.state() == TrainState{});
}

CATCH_TEST_CASE("an optimizer_step with scaled gradients is refused") {
  for (const auto precision : {Precision::fp16, Precision::fp16_mixed}) {
    Accelerator accelerator({.precision = precision, .device = at::kCPU});
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    Batches source = numbered_batches(1);
    const auto make = [&] {
      Trainer trainer(accelerator, model, optimizer, source, OneWeightStep<at::Tensor>(follow),
                      {.optimizer_step = step_with_closure});
    };
    CATCH_CHECK_THROWS_WITH(make(), Contains("invalid-settings") && Contains("optimizer_step"));
  }
}

}  // namespace lockstep::test
