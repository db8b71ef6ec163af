// Runs that read late whether an update was finite, against runs that read it at once.
#include <filesystem>
#include <map>

#include "invariants/cases.hpp"
#include "support/temporary_directory.hpp"

namespace lockstep::test {
namespace {

/// Few updates are read at once. The scale of fp16 grows now and then.
template <class C>
struct Late : C {
  explicit Late(Precision precision = Precision::fp32) : precision(precision) {}

  CaseSettings settings() const {
    auto settings = C::settings();
    settings.config.log_every = 5;
    settings.config.evaluate_every = Interval{.every = 1, .unit = Interval::Unit::epoch};
    settings.config.checkpoint_every = every_steps(4);
    settings.config.keep_checkpoints = {};
    settings.config.late_finite_check = true;
    settings.accelerator.precision = precision;
    if (scales_loss(precision)) settings.accelerator.loss_scaler = {{.initial_scale = 16, .growth_interval = 3}};
    return settings;
  }

  Precision precision;
};

/// SGD with momentum, clipped by value, without averages.
struct Momentum : SmoothMlp {
  CaseSettings settings() const {
    auto settings = SmoothMlp::settings();
    settings.config.max_grad_norm = {};
    settings.config.max_grad_value = 0.05;
    settings.ema_decay = {};
    return settings;
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer(Perceptron& model) const {
    return std::make_unique<SGD>(weight_decay_groups(model, 0.05),
                                 SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true});
  }
};

/// Clipped by norm and by value, with momentum in storage of its own.
struct MomentumSeparate : Momentum {
  CaseSettings settings() const {
    auto settings = Momentum::settings();
    settings.config.max_grad_norm = 0.3;
    settings.flat_parameters = false;
    return settings;
  }
};

/// What all checkpoints in a folder hold but texts.
std::map<std::string, std::string> digests(const std::filesystem::path& folder) {
  std::map<std::string, std::string> found;
  for (const auto& file : std::filesystem::recursive_directory_iterator(folder)) {
    if (file.path().extension() != ".safetensors") continue;
    found.emplace(std::filesystem::relative(file.path(), folder).string(), sha256(read_safetensors(file.path()).tensors));
  }
  return found;
}

struct Kept {
  testing::Record record;
  std::map<std::string, std::string> checkpoints;
  std::int64_t behind = 0;  ///< microbatches at whose begin an update was not counted yet
};

template <class C>
Kept run_of(const C& c, bool late) {
  const TemporaryDirectory directory;
  auto settings = c.settings();
  settings.config.late_finite_check = late;
  const auto window = settings.accelerator.gradient_accumulation_steps;
  testing::CaseRun<C> run(c, settings, directory.path() / "log");
  Kept kept;
  const auto per_epoch = (run.train_loader().size() + window - 1) / window;
  run.set_intercept([&](std::int64_t microbatch, const auto& step) {
    const auto before = microbatch - 1;
    const auto windows = before / run.train_loader().size() * per_epoch + before % run.train_loader().size() / window;
    kept.behind += run.trainer().state().step < windows;
    return step();
  });
  run.train({.checkpoint_dir = directory.path() / "checkpoints"});
  kept.record = run.record();
  kept.checkpoints = digests(directory.path() / "checkpoints");
  return kept;
}

CATCH_TEMPLATE_TEST_CASE("reading late whether updates are finite changes no bit of what is trained, logged or saved", "",
                         Ledger, Mlp, Momentum, MomentumSeparate, OddFlat, OddSeparate) {
  for (const auto precision : precisions) {
    CATCH_CAPTURE(to_string(precision));
    const Late<TestType> c(precision);
    // CUDA divides doubles by a number of the host's as it multiplies by the inverse, and by one of its own exactly.
    if (precision == Precision::fp64 && c.settings().accelerator.device->is_cuda()) continue;
    const Kept at_once = run_of(c, false);
    const Kept late = run_of(c, true);
    CATCH_CHECK(at_once.behind == 0);
    CATCH_CHECK(late.behind > 0);
    CATCH_CHECK(testing::first_difference(at_once.record, late.record) == "");
    CATCH_CHECK(at_once.checkpoints.size() > 3);
    CATCH_CHECK(at_once.checkpoints == late.checkpoints);
  }
}

CATCH_TEST_CASE("a run with late updates that was killed at any microbatch and resumed equals one that was not") {
  CATCH_CHECK(testing::check_resume(Late<Mlp>(), up_to(22)).difference == "");
  CATCH_CHECK(testing::check_resume(Late<Mlp>(Precision::fp16_mixed), up_to(22)).difference == "");
  CATCH_CHECK(testing::check_resume(Late<Momentum>(), up_to(22)).difference == "");
}

CATCH_TEST_CASE("a run with late updates that was stopped at any update and resumed equals one that was not") {
  CATCH_CHECK(testing::check_stop(Late<Mlp>(), up_to(22)).difference == "");
}

CATCH_TEST_CASE("a run whose late update is not finite goes on, without what spoilt it, as if that had not been") {
  const Late<Mlp> c;
  const auto whole = testing::detail::run_through(c);
  for (const std::int64_t spoilt : {5, 9, 15}) {
    CATCH_CAPTURE(spoilt);
    const TemporaryDirectory directory;
    testing::CaseRun<Late<Mlp>> first(c, c.settings(), directory.path() / "log");
    first.set_intercept([&](std::int64_t microbatch, const auto& step) {
      auto output = step();
      if (microbatch != spoilt) return output;
      return testing::detail::spoilt(testing::detail::LostWindow::non_finite_gradient, std::move(output));
    });
    CATCH_CHECK_THROWS_AS(first.train({.checkpoint_dir = directory.path() / "checkpoints"}), NonFiniteError);

    testing::CaseRun<Late<Mlp>> second(c, c.settings(), directory.path() / "log-of-resumed");
    second.train({.checkpoint_dir = directory.path() / "checkpoints", .resume_from = latest});
    testing::Record resumed = second.record();
    resumed.events = testing::merged_events(first.record().events, resumed.events);
    CATCH_CHECK(testing::first_difference(whole.record, resumed) == "");
  }
}

}  // namespace
}  // namespace lockstep::test
