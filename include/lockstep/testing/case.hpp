// A case: how the parts of a run are made afresh, so that an invariant can run it as often and as oddly as it
// needs to.
//
//     struct Digits {
//       lockstep::testing::CaseSettings settings() const {
//         return {.accelerator = {.gradient_accumulation_steps = 3, .seed = 7},
//                 .loader = {.batch_size = 16, .shuffle = true, .seed = 7},
//                 .config = {.epochs = 2, .log_every = 1},
//                 .ema_decay = 0.99};
//       }
//       std::shared_ptr<Net> model() const { return std::make_shared<Net>(); }
//       std::unique_ptr<torch::optim::Optimizer> optimizer(Net& model) const {
//         return std::make_unique<lockstep::AdamW>(lockstep::weight_decay_groups(model, 0.01));
//       }
//       DigitSet train_set() const { return DigitSet("train"); }
//       DigitSet validation_set() const { return DigitSet("validation"); }          // may be left out
//       auto step() const {
//         return [](Net& model, const lockstep::Example& batch) -> lockstep::StepOutput { ... };
//       }
//     };
//     static_assert(lockstep::testing::Case<Digits>);
//
// Everything that a run changes must be made in these functions: what they share between two calls, such as a
// static variable or a counter behind a pointer, survives an interruption here and does not in real life. A
// run of some ten updates over two epochs, with a last batch that is not full, shows most mistakes; keep it
// that small.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "lockstep/lockstep.hpp"
#include "lockstep/testing/record.hpp"

namespace lockstep::testing {

/// The settings of a case's run.
struct CaseSettings {
  AcceleratorOptions accelerator = {};
  DataLoaderOptions loader = {};
  TrainConfig config = {};
  std::optional<double> ema_decay = {};
  bool ema_warmup = false;
  bool flat_parameters = true;
  std::optional<Schedule> schedule = {};
  /// A sink of your own, attached wherever a run has a logger, so that it is shown to be an observer only.
  std::shared_ptr<Sink> sink = nullptr;
};

/// What an invariant takes; see above for one that is valid. Invalid: without settings(), with an optimizer
/// returned by value, with a model in a module holder (return `holder.ptr()`).
template <class T>
concept Case = requires(const T& c) {
  { c.settings() } -> std::same_as<CaseSettings>;
  { *c.model() } -> std::convertible_to<torch::nn::Module&>;
  { c.optimizer(*c.model()) } -> std::convertible_to<std::unique_ptr<torch::optim::Optimizer>>;
  DataLoader(c.train_set(), DataLoaderOptions{});
  c.step();
};

/// The case has a validation_set(), which its Step is evaluated on.
template <class T>
concept EvaluatedCase = Case<T> && requires(const T& c) {
  DataLoader(c.validation_set(), DataLoaderOptions{});
};

namespace detail {

template <Case C>
auto validation_loader([[maybe_unused]] const C& c, [[maybe_unused]] const DataLoaderOptions& options) {
  if constexpr (EvaluatedCase<C>) {
    return DataLoader(c.validation_set(), {.batch_size = options.batch_size, .seed = options.seed});
  } else {
    return nullptr;
  }
}

}  // namespace detail

/// One run of a case, with a hand on every call of its Step.
///
/// A log folder turns on a RunLogger, whose events the record holds. Owns all parts. Errors: those of the
/// Trainer.
template <Case C>
class CaseRun {
 public:
  using Model = std::remove_cvref_t<decltype(*std::declval<const C&>().model())>;
  using Loader = decltype(DataLoader(std::declval<const C&>().train_set(), DataLoaderOptions{}));
  using Batch = batch_t<Loader>;
  using Step = std::function<StepOutput(Model&, const Batch&)>;
  /// Called instead of the Step, from microbatch 1 on; `step` calls the case's own.
  using Intercept =
      std::function<StepOutput(std::int64_t microbatch, const std::function<StepOutput()>& step)>;

  CaseRun(const C& c, const CaseSettings& settings, const std::filesystem::path& log_dir = {})
      : settings_(settings),
        accelerator_(settings.accelerator),
        model_(c.model()),
        optimizer_(c.optimizer(*model_)),
        train_loader_(c.train_set(), settings.loader),
        validation_loader_(detail::validation_loader(c, settings.loader)),
        evaluator_(make_evaluator(c)),
        logger_(make_logger(log_dir)),
        trainer_(accelerator_, model_, *optimizer_, train_loader_, intercepted(c),
                 {.evaluator = evaluator_.get(),
                  .ema_decay = settings.ema_decay,
                  .ema_warmup = settings.ema_warmup,
                  .flat_parameters = settings.flat_parameters,
                  .logger = logger_.get()}) {
    if (settings.schedule) trainer_.set_scheduler(*settings.schedule);
  }
  CaseRun(const CaseRun&) = delete;
  CaseRun& operator=(const CaseRun&) = delete;

  void set_intercept(Intercept intercept) { intercept_ = std::move(intercept); }

  TrainState train(const TrainOptions& options = {}) { return train(settings_.config, options); }
  TrainState train(TrainConfig config, const TrainOptions& options = {}) {
    // Said on purpose, so that the Trainer does not warn of it.
    if (options.checkpoint_dir.empty()) config.checkpoint_every = {};
    return trainer_.train(config, options);
  }

  [[nodiscard]] auto& trainer() { return trainer_; }
  [[nodiscard]] Model& model() { return *model_; }
  [[nodiscard]] Loader& train_loader() { return train_loader_; }
  [[nodiscard]] const Accelerator& accelerator() const { return accelerator_; }
  /// Calls of the Step in training.
  [[nodiscard]] std::int64_t microbatches() const { return microbatches_; }

  /// The run as it stands.
  [[nodiscard]] Record record() const {
    const auto averages = settings_.ema_decay ? trainer_.weights(Weights::ema) : NamedTensors{};
    return {.state = trainer_.state(),
            .tensors = run_tensors(*model_, *optimizer_, averages, accelerator_.device()),
            .events = recorder_->events()};
  }

 private:
  Step intercepted(const C& c) {
    return [this, step = c.step()](Model& model, const Batch& batch) mutable -> StepOutput {
      ++microbatches_;
      if (!intercept_) return step(model, batch);
      return intercept_(microbatches_, [&] { return step(model, batch); });
    };
  }

  std::unique_ptr<ModelEvaluator<Model>> make_evaluator([[maybe_unused]] const C& c) {
    if constexpr (EvaluatedCase<C>) {
      using Sets = typename Evaluator<Step>::Sets;
      return std::make_unique<Evaluator<Step>>(accelerator_, Sets{{"validation", validation_loader_}},
                                               c.step());
    } else {
      return nullptr;
    }
  }

  std::unique_ptr<RunLogger> make_logger(const std::filesystem::path& log_dir) {
    if (log_dir.empty()) return nullptr;
    auto logger = std::make_unique<RunLogger>(
        log_dir, RunLoggerOptions{.quiet = true, .tensorboard = false, .record_git = false});
    logger->add_sink(recorder_);
    if (settings_.sink) logger->add_sink(settings_.sink);
    return logger;
  }

  CaseSettings settings_;
  Accelerator accelerator_;  // before the model, whose initial weights it seeds
  std::shared_ptr<Model> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  Loader train_loader_;
  decltype(detail::validation_loader(std::declval<const C&>(), DataLoaderOptions{})) validation_loader_;
  std::unique_ptr<ModelEvaluator<Model>> evaluator_;
  std::shared_ptr<EventRecorder> recorder_ = std::make_shared<EventRecorder>();
  std::unique_ptr<RunLogger> logger_;
  Intercept intercept_;
  std::int64_t microbatches_ = 0;
  Trainer<Model, Loader, Step> trainer_;
};

namespace detail {

/// What an invariant throws from a Step to end a run.
struct Interruption : std::runtime_error {
  Interruption() : std::runtime_error("interrupted by a test of an invariant") {}
};

/// Without evaluations, and with every update logged.
template <Case C>
CaseSettings plain_settings(const C& c) {
  auto settings = c.settings();
  settings.config.evaluate_every = {};
  settings.config.monitor = {};
  settings.config.keep_checkpoints = {};
  settings.config.log_every = 1;
  return settings;
}

inline Finding finding(const std::string& runs, const std::string& difference) {
  return {difference.empty() ? "" : runs + ": " + difference};
}

}  // namespace detail

}  // namespace lockstep::testing
