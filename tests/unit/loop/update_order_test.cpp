// The order of an update as docs/training-step.md lists it, against what a run shows from outside.
#include <algorithm>
#include <filesystem>
#include <ranges>
#include <sstream>

#include "support/catch.hpp"
#include "support/file_text.hpp"
#include "support/fixtures.hpp"

namespace lockstep::test {
namespace {

using Names = std::vector<std::string>;

/// What was seen, in order.
Names seen;

void note(const std::string& name) { seen.push_back(name); }

struct Microbatch {
  at::Tensor targets;
};

Microbatch to_device(const Microbatch& batch, const Placement& placement) {
  note("place");
  return {place(batch.targets, placement)};
}

constexpr int updates = 3;
constexpr std::int64_t microbatches = 2;
constexpr double limit = 0.5;

// Targets so far away that every gradient is clipped. With w near 0, the sum form of the gradients of 1 and 3 samples
// is near -(10 + 3 * 20), their mean -70 / 4.
auto source() {
  static const Batches targets = [] {
    Batches all;
    for (int update = 0; update < updates; ++update) {
      for (const auto& batch : batches({{10}, {20, 20, 20}})) all.push_back(batch);
    }
    return all;
  }();
  return std::views::transform(targets, [](const at::Tensor& batch) {
    note("batch");
    return Microbatch{batch};
  });
}
constexpr double sum_of_gradients = 70;
constexpr double mean_gradient = 70.0 / 4;

bool near(double value, double expected) { return std::abs(std::abs(value) - expected) < expected / 5; }

/// Notes what was done to the gradients, and that it was called.
struct SeenSgd : torch::optim::SGD {
  explicit SeenSgd(OneWeight& model) : SGD(model.parameters(), torch::optim::SGDOptions(0.1)), w(model.w) {}

  at::Tensor step(LossClosure closure) override {
    const double gradient = w.grad().item<double>();
    if (near(gradient, mean_gradient) || near(gradient, limit)) note("divide");
    if (near(gradient, limit)) note("clip");
    note("optimizer");
    return SGD::step(std::move(closure));
  }

  at::Tensor w;
};

struct SeenTorchSchedule : torch::optim::LRScheduler {
  using LRScheduler::LRScheduler;
  std::vector<double> get_lrs() override {
    note("schedule");
    return get_current_lrs();
  }
};

/// Notes events, and before a training line what changed since the line before it.
class SeenEvents : public Sink {
 public:
  std::function<double()> average;
  std::function<std::int64_t()> step;
  std::filesystem::path checkpoints;

  void write(const LogEvent& event) override {
    if (event.event == "train") train(event);
    if (event.event == "histograms") note("histograms");
    if (event.event == "evaluate") note("evaluate");
    if (event.event == "best") note("monitor");
    if (event.event == "checkpoint" && checkpoint_folders(checkpoints).size() == ++checkpoints_) note("checkpoint");
  }

 private:
  void train(const LogEvent& event) {
    for (const auto& [name, value] : event.values) {
      if (name == "grad_norm") note_norm(value);
    }
    if (average() != std::exchange(average_, average())) note("average");
    if (step() == ++step_) note("advance");
    note("log");
  }

  /// Its value tells whether it was measured before the division, after it, or after clipping.
  static void note_norm(double norm) {
    const auto behind = [](const std::string& name) {
      return std::find(seen.rbegin(), seen.rend(), name).base();
    };
    if (near(norm, sum_of_gradients)) seen.insert(behind("divide") - 1, "norm");
    if (near(norm, mean_gradient)) seen.insert(behind("divide"), "norm");
    if (near(norm, limit)) seen.insert(behind("clip"), "norm");
  }

  double average_ = 0;
  std::int64_t step_ = 0;
  std::size_t checkpoints_ = 0;
};

/// Three updates with everything that an update can hold.
void run(bool torch_schedule, const std::function<at::Tensor(const at::Tensor&)>& on_gradient) {
  seen.clear();
  Accelerator accelerator(
      {.precision = Precision::fp64, .gradient_accumulation_steps = microbatches, .device = at::kCPU});
  OneWeight model;
  SeenSgd optimizer(model);
  auto batches = source();
  auto step = [](OneWeight& module, const Microbatch& batch) -> StepOutput {
    note("step");
    return follow(module, batch.targets);
  };
  Batches evaluation_set(1, torch::zeros({1}, torch::kDouble));
  auto evaluation_step = [evaluations = 0](OneWeight&, const at::Tensor&) mutable -> StepOutput {
    return {.loss = torch::full({}, -++evaluations, torch::kDouble), .num_samples = 1};
  };
  Evaluator evaluator(accelerator, {{"validation", evaluation_set}}, evaluation_step);

  const TemporaryDirectory folder;
  RunLogger logger(folder.path() / "run", {.quiet = true});
  const auto events = std::make_shared<SeenEvents>();
  logger.add_sink(events);
  Trainer trainer(accelerator, model, optimizer, batches, step,
                  {.evaluator = &evaluator, .ema_decay = 0.5, .logger = &logger});
  events->average = [&] { return trainer.weights(Weights::ema).at(0).second.item<double>(); };
  events->step = [&] { return trainer.state().step; };
  events->checkpoints = folder.path() / "checkpoints";

  SeenTorchSchedule schedule(optimizer);
  seen.clear();
  if (torch_schedule) {
    trainer.set_scheduler(schedule);
  } else {
    trainer.set_scheduler(LambdaSchedule{"seen", [](std::int64_t) {
                                           note("rates");
                                           return 1.0;
                                         }});
  }
  bool zeroed = false;
  model.w.register_hook([&](const at::Tensor& gradient) {
    // An old gradient would have been there before the window's first backward pass.
    if (!zeroed && model.w.grad().item<double>() == 0) {
      seen.insert(std::find(seen.rbegin(), seen.rend(), "batch").base() - 1, "zero");
    }
    zeroed = !zeroed;
    note("backward");
    return on_gradient(gradient);
  });
  model.w.mutable_grad() = torch::ones({}, torch::kDouble);
  const Interval every_update{.every = 1, .unit = Interval::Unit::step};
  trainer.train({.max_steps = updates,
                 .log_every = 1,
                 .log_histograms_every = every_update,
                 .evaluate_every = every_update,
                 .checkpoint_every = every_update,
                 .background_saves = false,
                 .max_grad_norm = limit,
                 .monitor = Monitor("validation/loss")},
                {.checkpoint_dir = events->checkpoints});
}

/// The lines of the block `order`, those of a microbatch as often as there are some in a window.
Names documented(const Names& left_out) {
  const auto page = read_text(std::filesystem::path(__FILE__).parent_path() / "../../../docs/training-step.md");
  const std::string fence = "\n```order\n";
  const auto begin = page.find(fence);
  CATCH_REQUIRE(begin != std::string::npos);
  std::istringstream block(page.substr(begin + fence.size(), page.find("\n```\n", begin + fence.size()) - begin));

  Names names;
  Names of_a_microbatch;
  const auto repeat = [&] {
    for (std::int64_t i = 0; i < microbatches; ++i) {
      names.insert(names.end(), of_a_microbatch.begin(), of_a_microbatch.end());
    }
    of_a_microbatch.clear();
  };
  for (std::string line; std::getline(block, line) && line != "```";) {
    std::string name;
    std::istringstream(line) >> name;
    if (std::find(left_out.begin(), left_out.end(), name) != left_out.end()) continue;
    if (line.starts_with(" ")) {
      of_a_microbatch.push_back(name);
    } else {
      repeat();
      names.push_back(name);
    }
  }
  return names;
}

at::Tensor unchanged(const at::Tensor& gradient) { return gradient; }

// Nothing outside sees the vote of a single process; `finite` is the next test's.
CATCH_TEST_CASE("an update does what the documented order lists, in that order") {
  const bool torch_schedule = GENERATE(false, true);
  const auto update = documented({"vote", "finite", torch_schedule ? "rates" : "schedule"});
  CATCH_REQUIRE(update.size() > 15);
  Names expected;
  for (int i = 0; i < updates; ++i) expected.insert(expected.end(), update.begin(), update.end());

  run(torch_schedule, unchanged);
  CATCH_CHECK(seen == expected);
}

CATCH_TEST_CASE("a gradient that is not finite ends an update where the documented order says so") {
  auto expected = documented({"vote", "divide", "norm", "schedule"});
  expected.erase(std::find(expected.begin(), expected.end(), "finite"), expected.end());
  CATCH_REQUIRE(expected.size() > 8);
  expected.push_back("checkpoint");  // of the state before this update

  CATCH_CHECK_THROWS_AS(run(false, [](const at::Tensor& gradient) { return gradient / 0; }), NonFiniteError);
  CATCH_CHECK(seen == expected);
}

}  // namespace
}  // namespace lockstep::test
