// Failures of other training loops with signals, logs and memory.
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "files/checkpoint.hpp"
#include "support/file_text.hpp"
#include "support/fixtures.hpp"
#include "support/python.hpp"

using namespace lockstep;
using namespace lockstep::test;

CATCH_TEST_CASE("a signal inside a window waits for its end, and the resumed run is the uninterrupted one",
                "[T-70]") {
  const int signal = GENERATE(SIGTERM, SIGUSR1);
  const auto target_plus_w = [](OneWeight& model, const at::Tensor& targets) -> StepOutput {
    return {.loss = model.w * targets.sum(), .num_samples = 1};
  };
  OneWeightRun whole(numbered_batches(10), target_plus_w, {.accumulation = 4});
  (void)whole.trainer.train({.epochs = 1});

  const TemporaryDirectory directory;
  std::int64_t calls = 0;
  StopRequest stop;
  {
    const auto signals = stop.catch_signals();
    OneWeightRun first(numbered_batches(10),
                       [&](OneWeight& model, const at::Tensor& batch) {
                         if (++calls == 2) ::raise(signal);
                         return target_plus_w(model, batch);
                       },
                       {.accumulation = 4});
    const auto state =
        first.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .stop = &stop});
    CATCH_CHECK(state.stop_reason == (signal == SIGTERM ? "SIGTERM" : "SIGUSR1"));
    CATCH_CHECK(state.end == EndReason::stop_request);
  }
  const auto saved = read_checkpoint(directory.path() / "last").manifest.at("state");
  CATCH_CHECK(saved.at("step") == 1);
  CATCH_CHECK(saved.at("batches") == 4);

  Tape tape;
  OneWeightRun second(numbered_batches(10),
                      [&](OneWeight& model, const at::Tensor& batch) {
                        record(tape, batch);
                        return target_plus_w(model, batch);
                      },
                      {.accumulation = 4});
  (void)second.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(tape == Tape{4, 5, 6, 7, 8, 9});
  CATCH_CHECK(second.w() == whole.w());
}

CATCH_TEST_CASE("a second interrupt ends the process at once, and what was saved loads", "[T-71]") {
  const TemporaryDirectory directory;
  const auto checkpoints = directory.path() / "checkpoints";
  const TrainConfig config{.epochs = 1, .checkpoint_every = Interval{1, Interval::Unit::step}};

  // The second one comes when the state of step 2 is saved, and before the run has ended.
  struct InterruptAfterSaving : Sink {
    explicit InterruptAfterSaving(const StopRequest& stop) : stop(stop) {}
    void write(const LogEvent& event) override {
      if (event.event == "checkpoint" && stop.reason()) ::raise(SIGINT);
    }
    const StopRequest& stop;
  };
  const int status = in_child_process([&] {
    StopRequest stop;
    const auto signals = stop.catch_signals();
    RunLogger logger(directory.path() / "run", {.quiet = true});
    logger.add_sink(std::make_shared<InterruptAfterSaving>(stop));
    OneWeightRun run(numbered_batches(4),
                     [](OneWeight& model, const at::Tensor& batch) {
                       if (model.value() == -1) ::raise(SIGINT);
                       return ledger(model, batch);
                     },
                     {.logger = &logger});
    (void)run.trainer.train(config, {.checkpoint_dir = checkpoints, .stop = &stop});
  });
  CATCH_CHECK(ended_by(status, SIGINT));
  CATCH_CHECK(saved_w(checkpoints / "last") == -2.0);
  CATCH_CHECK_NOTHROW(verify_checkpoint(checkpoints / "last"));

  Tape tape;
  OneWeightRun resumed(numbered_batches(4), recorded(tape));
  (void)resumed.trainer.train(config, {.checkpoint_dir = checkpoints, .resume_from = latest});
  CATCH_CHECK(tape == Tape{2, 3});
  CATCH_CHECK(resumed.w() == -4.0);
}

namespace {

/// Loss n and gradient 1 at update n.
StepOutput numbered_loss(OneWeight& model, const at::Tensor&) {
  return {.loss = model.w - 2 * model.w.detach() + 1, .num_samples = 1};
}

/// A run over `batches` batches that is stopped in the update `stop_at`, then resumed, with a RunLogger each.
void train_in_two_parts(
    const std::filesystem::path& root, std::int64_t batches, std::int64_t stop_at, const TrainConfig& config,
    const std::function<void()>& between = [] {}) {
  const OneWeightSettings settings{.evaluation_set = numbered_batches(1)};
  const auto part = [&](StopRequest* stop, std::optional<ResumeFrom> resume_from) {
    RunLogger logger(root / "run", {.quiet = true});
    auto with_logger = settings;
    with_logger.logger = &logger;
    OneWeightRun run(
        numbered_batches(batches),
        [&](OneWeight& model, const at::Tensor& batch) {
          if (stop && model.value() == 1 - static_cast<double>(stop_at)) stop->request("test");
          return numbered_loss(model, batch);
        },
        with_logger);
    (void)run.trainer.train(
        config, {.checkpoint_dir = root / "checkpoints", .resume_from = resume_from, .stop = stop});
  };
  StopRequest stop;
  part(&stop, std::nullopt);
  between();
  part(nullptr, latest);
}

using Series = std::vector<std::pair<std::int64_t, double>>;

/// (step, value) of each line of metrics.jsonl that holds this value; lines that are no JSON are passed over.
Series series(const std::filesystem::path& root, const std::string& name) {
  Series result;
  std::istringstream lines(read_text(root / "run" / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_discarded() || !event.at("values").contains(name)) continue;
    result.emplace_back(event.at("step").get<std::int64_t>(), event.at("values").at(name).get<double>());
  }
  return result;
}

std::vector<std::int64_t> steps(const Series& series) {
  std::vector<std::int64_t> result;
  for (const auto& point : series) result.push_back(point.first);
  return result;
}

}  // namespace

CATCH_TEST_CASE("the logged step goes on after a resume, for training and evaluation alike", "[T-73]") {
  const TemporaryDirectory directory;
  train_in_two_parts(directory.path(), 8, 4,
                     {.epochs = 1, .log_every = 1, .evaluate_every = Interval{2, Interval::Unit::step}});
  CATCH_CHECK(steps(series(directory.path(), "train/loss")) ==
              std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8});
  CATCH_CHECK(steps(series(directory.path(), "validation/loss")) == std::vector<std::int64_t>{2, 4, 6, 8});
}

CATCH_TEST_CASE("a log line after a resume covers the updates since the line before it", "[T-74]") {
  const TemporaryDirectory directory;
  CATCH_SECTION("a line for each update") {
    train_in_two_parts(directory.path(), 4, 2, {.epochs = 1, .log_every = 1});
    CATCH_CHECK(series(directory.path(), "train/loss") == Series{{1, 1}, {2, 2}, {3, 3}, {4, 4}});
  }
  CATCH_SECTION("interrupted between two lines") {
    train_in_two_parts(directory.path(), 6, 3, {.epochs = 1, .log_every = 2});
    CATCH_CHECK(series(directory.path(), "train/loss") == Series{{2, 1.5}, {4, 3.5}, {6, 5.5}});
  }
}

CATCH_TEST_CASE("resuming appends to the log and closes off a torn line", "[T-77]") {
  const TemporaryDirectory directory;
  const auto file = directory.path() / "run" / "metrics.jsonl";
  std::string before;
  train_in_two_parts(directory.path(), 8, 4, {.epochs = 1, .log_every = 1}, [&] {
    std::ofstream(file, std::ios::app) << R"({"event": "tra)";
    before = read_text(file);
  });
  const std::string after = read_text(file);
  CATCH_CHECK(after.starts_with(before + "\n{"));
  CATCH_CHECK(steps(series(directory.path(), "train/loss")) ==
              std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8});
}

CATCH_TEST_CASE("TensorBoard reads a run that was killed as metrics.jsonl has it (LOCKSTEP_TEST_PYTHON)") {
  const TemporaryDirectory directory;
  struct KillAt8 : Sink {
    void write(const LogEvent& event) override {
      if (event.step == 8) ::raise(SIGKILL);
    }
  };
  const auto train = [&](std::shared_ptr<Sink> sink) {
    RunLogger logger(directory.path() / "run", {.quiet = true});
    if (sink) logger.add_sink(std::move(sink));
    OneWeightRun run(numbered_batches(12), numbered_loss,
                     {.evaluation_set = numbered_batches(1), .logger = &logger});
    (void)run.trainer.train({.epochs = 1,
                             .log_every = 1,
                             .evaluate_every = Interval{2, Interval::Unit::step},
                             .checkpoint_every = Interval{3, Interval::Unit::step}},
                            {.checkpoint_dir = directory.path() / "checkpoints", .resume_from = latest});
  };
  CATCH_REQUIRE(ended_by(in_child_process([&] { train(std::make_shared<KillAt8>()); }), SIGKILL));
  train(nullptr);
  run_python("tensorboard_check.py", "'" + (directory.path() / "run").string() + "' > '" +
                                         (directory.path() / "read.json").string() + "'");
  CATCH_CHECK(nlohmann::json::parse(read_text(directory.path() / "read.json"))["scalars"] >= 12 * 3 + 6);

  std::vector<std::int64_t> steps;
  for (const auto& event : read_run_history(directory.path() / "run" / "metrics.jsonl")) {
    if (event.event == "train") steps.push_back(event.step);
  }
  CATCH_CHECK(steps == std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
}

namespace {

constexpr std::int64_t two_megabytes = 2 << 20;

}  // namespace

CATCH_TEST_CASE("losses and metrics with a graph do not keep it alive", "[T-91]") {
  Accelerator accelerator({.device = at::kCPU});
  torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(8, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.001));
  const Batches source(100, torch::ones({2, 4}));
  std::int64_t calls = 0;
  std::int64_t at_2000 = 0;
  const auto step = [&](torch::nn::SequentialImpl& net, const at::Tensor& x) -> StepOutput {
    if (++calls == 2000) at_2000 = resident_bytes();
    const auto output = net.forward(x);
    return {.loss = output.square().mean(),
            .num_samples = 2,
            .metrics = {{"output", MeanMetric(output.sum(), 2)}}};
  };
  Trainer trainer(accelerator, model, optimizer, source, step);
  const auto state = trainer.train({.epochs = 200, .log_every = 1000});
  CATCH_CHECK(state.step == 20'000);
  CATCH_CHECK(resident_bytes() - at_2000 < two_megabytes);
}

CATCH_TEST_CASE("of metrics only a sum and a count is kept", "[T-92]") {
  constexpr std::int64_t size = 50'000;
  Accelerator accelerator({.precision = Precision::fp64, .device = at::kCPU});
  OneWeight model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.001));
  auto loader = numbered_loader(size);
  const auto with_metrics = [](OneWeight& model, const Example& batch) -> StepOutput {
    const auto sum = batch.data.sum();
    return {
        .loss = model.w, .num_samples = 1, .metrics = {{"a", {sum, 1}}, {"b", {sum, 2}}, {"c", {sum, 3}}}};
  };
  const auto measured = [&](std::int64_t& calls, std::int64_t& early, std::int64_t& late) {
    return [&](OneWeight& model, const Example& batch) {
      ++calls;
      if (calls == size / 10) early = resident_bytes();
      if (calls == size) late = resident_bytes();
      return with_metrics(model, batch);
    };
  };
  std::int64_t evaluated = 0, early_evaluated = 0, late_evaluated = 0;
  Evaluator evaluator(accelerator, {{"validation", loader}},
                      measured(evaluated, early_evaluated, late_evaluated));
  std::int64_t trained = 0, early_trained = 0, late_trained = 0;
  Trainer trainer(accelerator, model, optimizer, loader, measured(trained, early_trained, late_trained),
                  {.evaluator = &evaluator});
  (void)trainer.train({.epochs = 1, .log_every = size});
  CATCH_CHECK(trained == size);
  CATCH_CHECK(evaluated == size);
  CATCH_CHECK(late_trained - early_trained < two_megabytes);
  CATCH_CHECK(late_evaluated - early_evaluated < two_megabytes);
}
