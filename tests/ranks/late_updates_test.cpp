// Runs of several ranks that read late whether an update was finite.
#include <limits>

#include "invariants/cases.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {
namespace {

/// Every tensor that the next update depends on, what is logged of losses and norms, and the state.
template <class C>
std::string outcome_of_run(const Rank& rank, bool late, Precision precision) {
  const C c;
  auto settings = c.settings();
  settings.accelerator.launch = rank.launch();
  settings.accelerator.precision = precision;
  settings.config.log_every = 5;
  settings.config.evaluate_every = Interval{.every = 1, .unit = Interval::Unit::epoch};
  settings.config.check_ranks_every = every_steps(4);
  settings.config.late_finite_check = late;
  settings.config.monitor = {};
  if (scales_loss(precision)) settings.accelerator.loss_scaler = {{.initial_scale = 16, .growth_interval = 2}};
  testing::CaseRun<C> run(c, settings, rank.directory / ("log-" + std::to_string(rank.number)));
  run.train({.checkpoint_dir = rank.directory / "checkpoints"});
  std::string text = testing::detail::digest_of_common_state(run) + " " + std::to_string(run.trainer().state().step);
  if (rank.number > 0) return text;
  for (const auto& event : run.record().events) {
    if (event.event != "train" && event.event != "epoch" && event.event != "evaluate") continue;
    text += "\n" + event.event + " " + std::to_string(event.step);
    for (const auto& [name, value] : event.values) {
      if (!name.starts_with("time/") && !name.ends_with("per_second")) text += " " + name + " " + testing::text_of(value);
    }
  }
  return text;
}

CATCH_TEMPLATE_TEST_CASE("reading late whether updates are finite changes no bit on two and three ranks", "", Mlp,
                         OddFlat, OddSeparate) {
  for (const int count : {2, 3}) {
    for (const auto precision : {Precision::fp32, Precision::fp16_mixed}) {
      CATCH_CAPTURE(count, to_string(precision));
      const auto texts = [&](bool late) {
        return run_ranks(count, [&](Rank& rank) { return outcome_of_run<TestType>(rank, late, precision); }).texts();
      };
      CATCH_CHECK(texts(true) == texts(false));
    }
  }
}

/// Adds 1 to the weight in every update; on rank 1 the gradient of update `infinite` is infinite.
struct OneBadGradient {
  OneBadGradient(const Rank& rank, Precision precision, std::int64_t infinite)
      : accelerator([&] {
          auto options = rank.options();
          options.precision = precision;
          if (scales_loss(precision)) options.loss_scaler = {{.initial_scale = 4}};
          return options;
        }()),
        model(std::make_shared<torch::nn::LinearImpl>(1, 1)),
        optimizer({{.name = "all", .parameters = trainable_parameters(*model), .weight_decay = 0}}, {.lr = 1}),
        source(numbered_batches(8 * rank.world_size)),
        step([infinite, number = rank.number, call = 0](torch::nn::LinearImpl& linear, const at::Tensor&) mutable {
          const bool bad = ++call == infinite && number == 1;
          auto loss = -(linear.bias.sum() + linear.weight.sum() * 0);
          if (bad) {
            loss.register_hook([](const at::Tensor& gradient) {
              return gradient * std::numeric_limits<double>::infinity();
            });
          }
          return StepOutput{.loss = loss, .num_samples = 1};
        }),
        trainer(accelerator, model, optimizer, source, step) {
    const torch::NoGradGuard none;
    model->bias.zero_();
  }

  [[nodiscard]] std::string text() const {
    const auto& state = trainer.state();
    return "step " + std::to_string(state.step) + " batches " + std::to_string(state.batches) + " bias " +
           testing::text_of(model->bias.item<double>());
  }

  using Step = std::function<StepOutput(torch::nn::LinearImpl&, const at::Tensor&)>;
  Accelerator accelerator;
  std::shared_ptr<torch::nn::LinearImpl> model;
  SGD optimizer;
  Batches source;
  Step step;
  Trainer<torch::nn::LinearImpl, Batches, Step> trainer;
};

const TrainConfig late_config{.epochs = 1, .log_every = 100, .checkpoint_every = {}, .late_finite_check = true};

CATCH_TEST_CASE("an overflow on one rank that is read late skips the update on all") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    OneBadGradient run(rank, Precision::fp16_mixed, 4);
    run.trainer.train(late_config);
    return run.text();
  });
  CATCH_CHECK(ranks.same_text() == "step 7 batches 8 bias 7");
}

CATCH_TEST_CASE("a gradient on one rank that is not finite ends the run on all of them, and it goes on from before") {
  const TemporaryDirectory directory;
  const auto ended = run_ranks(2, [&](Rank& rank) {
    OneBadGradient run(rank, Precision::fp32, 4);
    try {
      run.trainer.train(late_config, {.checkpoint_dir = directory.path()});
    } catch (const NonFiniteError& error) {
      return error.id() + " " + run.text();
    }
    return run.text();
  });
  CATCH_CHECK(ended.same_text() == "non-finite-gradient step 3 batches 3 bias 3");
  const auto resumed = run_ranks(2, [&](Rank& rank) {
    OneBadGradient run(rank, Precision::fp32, 100);
    run.trainer.train(late_config, {.checkpoint_dir = directory.path(), .resume_from = latest});
    return run.text();
  });
  CATCH_CHECK(resumed.same_text() == "step 8 batches 8 bias 8");
}

CATCH_TEST_CASE("what a hook of one rank asks for is met by all, by an update that is read at once") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    OneBadGradient run(rank, Precision::fp32, 100);
    HookFunctions hook{.epoch_begin = [&](Run& current) {
      if (rank.number == 1 && current.state().epoch == 1) current.request_stop("a hook");
    }};
    Trainer trainer(run.accelerator, run.model, run.optimizer, run.source, run.step, {.hooks = {hook}});
    auto config = late_config;
    config.epochs = 3;
    const auto state = trainer.train(config);
    return std::to_string(state.step) + " " + *state.stop_reason + " " +
           testing::text_of(run.model->bias.item<double>());
  });
  CATCH_CHECK(ranks.same_text() == "9 a hook 9");
}

CATCH_TEST_CASE("a Step that fails on one rank leaves the late update before it counted on all") {
  const auto ranks = run_ranks(2, [](Rank& rank) {
    OneBadGradient run(rank, Precision::fp32, 100);
    struct Counted {
      explicit Counted(OneBadGradient& run, int number)
          : trainer(run.accelerator, run.model, run.optimizer, run.source,
                    OneBadGradient::Step([step = run.step, number, call = 0](auto& model, const auto& batch) mutable {
                      if (++call == 4 && number == 1) throw std::runtime_error("the fourth");
                      return step(model, batch);
                    })) {}
      Trainer<torch::nn::LinearImpl, Batches, OneBadGradient::Step> trainer;
    } counted(run, rank.number);
    try {
      counted.trainer.train(late_config);
    } catch (const std::exception&) {
    }
    return std::to_string(counted.trainer.state().step) + " " + testing::text_of(run.model->bias.item<double>());
  });
  CATCH_CHECK(ranks.same_text() == "3 3");
}

}  // namespace
}  // namespace lockstep::test
