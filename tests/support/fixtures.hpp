// Tiny runs whose result can be worked out in the head.
//
//   follow   loss mean((w - t)^2) / 2: with SGD of rate 1 every update sets w to the mean of its window's
//   targets ledger   loss w, gradient 1: w is minus the sum of the learning rates used; at rate 1, minus the
//   number of updates Tape     the targets that a Step got: order and position of the data script   an
//   evaluation Step whose metric is looked up by -w: with ledger, the n-th value after n updates
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.hpp"
#include "support/temporary_directory.hpp"

namespace lockstep::test {

struct OneWeight : torch::nn::Module {
  explicit OneWeight(double start = 0) : w(register_parameter("w", torch::full({}, start, torch::kDouble))) {}

  [[nodiscard]] double value() const { return w.item<double>(); }

  at::Tensor w;
};

/// Batches of targets, in order, held in memory.
using Batches = std::vector<at::Tensor>;

inline Batches batches(std::initializer_list<std::vector<double>> targets) {
  Batches result;
  for (const auto& batch : targets) result.push_back(torch::tensor(batch, torch::kDouble));
  return result;
}

/// `count` batches of one sample with targets 0, 1, 2, ...
inline Batches numbered_batches(std::int64_t count) {
  Batches result;
  for (std::int64_t i = 0; i < count; ++i)
    result.push_back(torch::full({1}, static_cast<double>(i), torch::kDouble));
  return result;
}

/// Targets 0, 1, 2, ... `size` - 1 as the data of Examples.
inline DataLoader<TensorDataset> numbered_loader(std::int64_t size, DataLoaderOptions options = {}) {
  return DataLoader(TensorDataset(torch::arange(size, torch::kDouble)), options);
}

inline const at::Tensor& targets_of(const at::Tensor& batch) { return batch; }
inline const at::Tensor& targets_of(const Example& batch) { return batch.data; }

template <class Batch>
using OneWeightStep = std::function<StepOutput(OneWeight&, const Batch&)>;

inline constexpr auto follow = [](OneWeight& model, const auto& batch) -> StepOutput {
  const auto& targets = targets_of(batch);
  return {.loss = (model.w - targets).square().mean() / 2, .num_samples = targets.numel()};
};

inline constexpr auto ledger = [](OneWeight& model, const auto&) -> StepOutput {
  return {.loss = model.w, .num_samples = 1};
};

using Tape = std::vector<double>;

inline void record(Tape& tape, const at::Tensor& targets) {
  for (std::int64_t i = 0; i < targets.numel(); ++i) tape.push_back(targets[i].item<double>());
}

/// `ledger`, with every target written to `tape`.
inline auto recorded(Tape& tape) {
  return [&tape](OneWeight& model, const auto& batch) {
    record(tape, targets_of(batch));
    return ledger(model, batch);
  };
}

/// The metric `score` is the n-th of `values` while w is -n.
inline auto script(std::vector<double> values) {
  return [values = std::move(values)](OneWeight& model, const at::Tensor&) -> StepOutput {
    const auto update = static_cast<std::size_t>(-model.value());
    return {.loss = model.w, .num_samples = 1, .metrics = {{"score", MeanMetric(values.at(update - 1), 1)}}};
  };
}

struct OneWeightSettings {
  std::int64_t accumulation = 1;
  double lr = 1;
  std::optional<double> ema_decay = {};
  Batches evaluation_set = {};  ///< evaluated as `validation`; empty: there is no Evaluator
  OneWeightStep<at::Tensor> evaluation_step = ledger;
  RunLogger* logger = nullptr;
  std::uint64_t seed = 0;
  Batches rare_set = {};  ///< evaluated as `rare`, every two epochs; empty: there is none
  Batches test_set = {};  ///< tested as `test` at the end, with evaluation_step; empty: there is no test
  LaunchOptions launch = {};
  Hooks hooks = {};
};

/// A Trainer of a OneWeight with SGD, in double, with all it refers to.
template <class Source>
class OneWeightRun {
 public:
  using Step = OneWeightStep<batch_t<Source>>;

  OneWeightRun(Source source, Step step, OneWeightSettings settings = {})
      : accelerator({.precision = Precision::fp64,
                     .gradient_accumulation_steps = settings.accumulation,
                     .seed = settings.seed,
                     .device = at::kCPU,
                     .launch = settings.launch,
                     .rank_timeout = std::chrono::seconds(20)}),
        optimizer(model.parameters(), torch::optim::SGDOptions(settings.lr)),
        source_(std::move(source)),
        evaluation_set_(std::move(settings.evaluation_set)),
        rare_set_(std::move(settings.rare_set)),
        test_set_(std::move(settings.test_set)),
        evaluator_(accelerator, sets(), settings.evaluation_step,
                   {.every = rare_set_.empty() ? std::map<std::string, Interval>{}
                                               : std::map<std::string, Interval>{{"rare", {.every = 2}}}}),
        test_(accelerator, {{"test", test_set_}}, settings.evaluation_step),
        trainer(accelerator, model, optimizer, source_, std::move(step),
                {.evaluator = evaluation_set_.empty() ? nullptr : &evaluator_,
                 .test = test_set_.empty() ? nullptr : &test_,
                 .ema_decay = settings.ema_decay,
                 .logger = settings.logger,
                 .hooks = settings.hooks}) {}

  [[nodiscard]] double w() const { return model.value(); }

  Accelerator accelerator;
  OneWeight model;
  torch::optim::SGD optimizer;

 private:
  using AnyEvaluator = Evaluator<OneWeightStep<at::Tensor>>;

  AnyEvaluator::Sets sets() {
    AnyEvaluator::Sets sets{{"validation", evaluation_set_}};
    if (!rare_set_.empty()) sets.emplace("rare", rare_set_);
    return sets;
  }

  Source source_;
  Batches evaluation_set_;
  Batches rare_set_;
  Batches test_set_;
  AnyEvaluator evaluator_;
  AnyEvaluator test_;

 public:
  Trainer<OneWeight, Source, Step> trainer;
};

/// The text of the Error that a train() call throws; "" if it throws none.
std::string train_error(auto& run, const TrainConfig& config, const TrainOptions& options = {}) {
  try {
    (void)run.trainer.train(config, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// A RunLogger in a folder of its own, and what it was given.
class RecordedLog {
 public:
  RecordedLog() : sink_(std::make_shared<Recorder>()) { logger_.add_sink(sink_); }

  [[nodiscard]] RunLogger* logger() { return &logger_; }
  [[nodiscard]] const std::vector<LogEvent>& events() const { return sink_->events; }

  /// How many events of this kind there are.
  [[nodiscard]] std::int64_t count(const std::string& event) const {
    std::int64_t result = 0;
    for (const auto& logged : events()) result += logged.event == event;
    return result;
  }

  /// (step, value) of every event that holds a value of this name, in order.
  [[nodiscard]] std::vector<std::pair<std::int64_t, double>> series(const std::string& name) const {
    std::vector<std::pair<std::int64_t, double>> result;
    for (const auto& logged : events()) {
      for (const auto& [value_name, value] : logged.values) {
        if (value_name == name) result.emplace_back(logged.step, value);
      }
    }
    return result;
  }

 private:
  struct Recorder : Sink {
    void write(const LogEvent& event) override { events.push_back(event); }
    std::vector<LogEvent> events;
  };

  TemporaryDirectory directory_;
  RunLogger logger_{directory_.path() / "run", {.quiet = true}};
  std::shared_ptr<Recorder> sink_;
};

/// Runs `body` in a child process and returns how that ended, as waitpid() says it. `body` must not use
/// Catch2.
inline int in_child_process(auto&& body) {
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("cannot fork");
  if (child == 0) {
    try {
      body();
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status;
}

inline bool ended_by(int status, int signal) { return WIFSIGNALED(status) && WTERMSIG(status) == signal; }

/// The names of the checkpoint folders in `root`, in alphabetical order.
inline std::vector<std::string> checkpoint_folders(const std::filesystem::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const auto name = entry.path().filename().string();
    if (!entry.is_symlink() && name.starts_with("step-")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The one weight in a checkpoint.
inline double saved_w(const std::filesystem::path& checkpoint,
                      const std::string& file = "model.safetensors") {
  return read_safetensors(checkpoint / file).tensors.at(0).second.item<double>();
}

}  // namespace lockstep::test
