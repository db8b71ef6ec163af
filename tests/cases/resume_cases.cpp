// Failures of other training loops with resuming: position, order, random numbers, other settings.
#include "files/checkpoint.hpp"
#include "support/fixtures.hpp"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Catch::Matchers::Contains;

enum class Interruption { stop_request, kill };

/// Ends a run after the update in whose Step count() was called for the `calls`-th time; a kill comes in the
/// update after it, whose state nobody saves.
class Interrupter {
 public:
  Interrupter(Interruption kind, std::int64_t calls) : kind_(kind), left_(calls) {}

  void count() {
    --left_;
    if (kind_ == Interruption::stop_request && left_ == 0) stop.request("test");
    if (kind_ == Interruption::kill && left_ < 0) ::raise(SIGKILL);
  }

  /// Runs `train`, in a process of its own if that is to be killed.
  void run(auto&& train) {
    if (kind_ == Interruption::stop_request) {
      train();
    } else {
      CATCH_REQUIRE(ended_by(in_child_process(train), SIGKILL));
    }
  }

  StopRequest stop;

 private:
  Interruption kind_;
  std::int64_t left_;
};

constexpr auto every_step = Interval{1, Interval::Unit::step};

// Runs that are killed save at once, so that it is known from which checkpoint the next one goes on.

/// The tape of a run over `size` shuffled samples for `epochs`, interrupted after `calls` of its Step and
/// resumed.
Tape resumed_tape(Interruption kind, std::int64_t size, std::int64_t epochs, std::int64_t calls,
                  TrainState& end) {
  const TemporaryDirectory directory;
  const DataLoaderOptions data{.shuffle = true, .seed = 3};
  const TrainConfig config{.epochs = epochs, .checkpoint_every = every_step, .background_saves = false};
  Interrupter interrupter(kind, calls);
  interrupter.run([&] {
    const auto step = [&](OneWeight& model, const Example& batch) {
      interrupter.count();
      return ledger(model, batch);
    };
    OneWeightRun first(numbered_loader(size, data), step);
    (void)first.trainer.train(config, {.checkpoint_dir = directory.path(), .stop = &interrupter.stop});
  });
  Tape tape;
  OneWeightRun second(numbered_loader(size, data), recorded(tape));
  end = second.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(second.w() == -static_cast<double>(end.step));
  return tape;
}

Tape uninterrupted_tape(std::int64_t size, std::int64_t epochs) {
  Tape tape;
  OneWeightRun run(numbered_loader(size, {.shuffle = true, .seed = 3}), recorded(tape));
  (void)run.trainer.train({.epochs = epochs});
  return tape;
}

Tape sorted(Tape tape) {
  std::sort(tape.begin(), tape.end());
  return tape;
}

}  // namespace

CATCH_TEST_CASE("a run killed inside an epoch goes on behind its last checkpoint", "[T-19]") {
  const TemporaryDirectory directory;
  const DataLoaderOptions data{.shuffle = true, .seed = 5};
  const TrainConfig config{
      .epochs = 1, .checkpoint_every = Interval{4, Interval::Unit::step}, .background_saves = false};
  const Tape whole = [&] {
    Tape tape;
    OneWeightRun run(numbered_loader(10, data), recorded(tape));
    (void)run.trainer.train(config);
    return tape;
  }();
  CATCH_CHECK(sorted(whole) == Tape{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});

  const int status = in_child_process([&] {
    std::int64_t calls = 0;
    const auto step = [&](OneWeight& model, const Example& batch) {
      if (++calls == 7) ::raise(SIGKILL);
      return ledger(model, batch);
    };
    OneWeightRun killed(numbered_loader(10, data), step);
    (void)killed.trainer.train(config, {.checkpoint_dir = directory.path()});
  });
  CATCH_REQUIRE(ended_by(status, SIGKILL));
  CATCH_CHECK(read_checkpoint(directory.path() / "last").manifest.at("state").at("next_batch") == 4);

  Tape tape;
  OneWeightRun resumed(numbered_loader(10, data), recorded(tape));
  (void)resumed.trainer.train(config, {.checkpoint_dir = directory.path(), .resume_from = latest});
  CATCH_CHECK(tape == Tape(whole.begin() + 4, whole.end()));
}

CATCH_TEST_CASE("no batch is lost when a run is interrupted early in an epoch", "[T-20]") {
  const auto kind = GENERATE(Interruption::stop_request, Interruption::kill);
  TrainState end;
  const Tape tape = resumed_tape(kind, 10, 2, 2, end);
  CATCH_CHECK(end.step == 20);
  CATCH_CHECK(end.batches == 20);
  CATCH_CHECK(end.epoch == 2);
  const Tape whole = uninterrupted_tape(10, 2);
  CATCH_CHECK(tape == Tape(whole.begin() + 2, whole.end()));
  CATCH_CHECK(sorted(whole) == Tape{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9});
}

CATCH_TEST_CASE("a run interrupted in a later epoch goes on in that epoch's order", "[T-22][T-23]") {
  const auto kind = GENERATE(Interruption::stop_request, Interruption::kill);
  const Tape whole = uninterrupted_tape(8, 3);
  const Tape first(whole.begin(), whole.begin() + 8);
  const Tape second(whole.begin() + 8, whole.begin() + 16);
  const Tape third(whole.begin() + 16, whole.end());
  CATCH_CHECK(first != second);
  CATCH_CHECK(first != third);
  CATCH_CHECK(second != third);
  for (const auto& epoch : {first, second, third}) CATCH_CHECK(sorted(epoch) == Tape{0, 1, 2, 3, 4, 5, 6, 7});

  TrainState end;
  CATCH_CHECK(resumed_tape(kind, 8, 3, 10, end) == Tape(whole.begin() + 10, whole.end()));
}

CATCH_TEST_CASE("a checkpoint at the end of an epoch belongs to the next one", "[T-25]") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_loader(5), ledger);
  (void)first.trainer.train({.epochs = 3}, {.checkpoint_dir = directory.path() / "first"});

  const auto checkpoint = directory.path() / "first" / "step-00000005";
  const auto saved = read_checkpoint(checkpoint).manifest.at("state");
  CATCH_CHECK(saved.at("epoch") == 1);
  CATCH_CHECK(saved.at("next_batch") == 0);
  CATCH_CHECK(saved.at("step") == 5);

  OneWeightRun second(numbered_loader(5), ledger);
  const auto state = second.trainer.train({.epochs = 3}, {.resume_from = checkpoint});
  CATCH_CHECK(state.batches == 15);
  CATCH_CHECK(second.w() == -15.0);
}

namespace {

/// Sample `index` is a random number from its own seed.
struct DrawnSamples {
  [[nodiscard]] std::int64_t size() const { return 6; }
  [[nodiscard]] at::Tensor get(std::int64_t, std::uint64_t sample_seed) const {
    return torch::full({1}, SampleRandom(sample_seed).uniform());
  }
};

struct DropoutNet : torch::nn::Module {
  DropoutNet()
      : linear(register_module("linear", torch::nn::Linear(1, 16))),
        dropout(register_module("dropout", torch::nn::Dropout(0.5))),
        out(register_module("out", torch::nn::Linear(16, 1))) {}
  at::Tensor forward(const at::Tensor& x) { return out(dropout(linear(x))); }

  torch::nn::Linear linear;
  torch::nn::Dropout dropout;
  torch::nn::Linear out;
};

struct DropoutResult {
  Tape draws;
  Tape losses;
  std::string weights;
};

DropoutResult train_dropout_net(std::int64_t epochs, const TrainOptions& options, Interrupter* interrupter) {
  Accelerator accelerator({.seed = 11, .device = at::kCPU});
  auto model = std::make_shared<DropoutNet>();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  DataLoader loader(DrawnSamples{}, {.shuffle = true, .seed = 11});
  DropoutResult result;
  const auto step = [&](DropoutNet& net, const at::Tensor& x) -> StepOutput {
    if (interrupter) interrupter->count();
    const auto loss = net.forward(x).square().mean();
    result.draws.push_back(x.item<double>());
    result.losses.push_back(loss.item<double>());
    return {.loss = loss, .num_samples = 1};
  };
  Trainer trainer(accelerator, model, optimizer, loader, step);
  (void)trainer.train({.epochs = epochs, .checkpoint_every = every_step, .background_saves = false}, options);
  result.weights = sha256(trainer.weights());
  return result;
}

}  // namespace

CATCH_TEST_CASE("resuming inside an epoch restores every stream of random numbers", "[T-26]") {
  const auto kind = GENERATE(Interruption::stop_request, Interruption::kill);
  const std::int64_t epochs = GENERATE(1, 3);
  const auto whole = train_dropout_net(epochs, {}, nullptr);
  const TemporaryDirectory directory;
  Interrupter interrupter(kind, 2);
  interrupter.run([&] {
    (void)train_dropout_net(epochs, {.checkpoint_dir = directory.path(), .stop = &interrupter.stop},
                            &interrupter);
  });
  const auto resumed =
      train_dropout_net(epochs, {.checkpoint_dir = directory.path(), .resume_from = latest}, nullptr);
  CATCH_CHECK(resumed.draws == Tape(whole.draws.begin() + 2, whole.draws.end()));
  CATCH_CHECK(resumed.losses == Tape(whole.losses.begin() + 2, whole.losses.end()));
  CATCH_CHECK(resumed.weights == whole.weights);
}

CATCH_TEST_CASE("augmentation differs between epochs and seeds and not between numbers of workers",
                "[T-95]") {
  const auto draws = [](int workers, std::uint64_t seed) {
    Accelerator accelerator({.device = at::kCPU});
    OneWeight model;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(1));
    DataLoader loader(DrawnSamples{}, {.seed = seed, .workers = workers});
    Tape tape;
    Trainer trainer(accelerator, model, optimizer, loader, [&tape](OneWeight& model, const at::Tensor& x) {
      record(tape, x.view({-1}));
      return ledger(model, x);
    });
    (void)trainer.train({.epochs = 3});
    return tape;
  };
  const Tape reference = draws(0, 7);
  CATCH_REQUIRE(reference.size() == 18);
  const auto distinct = [](Tape tape) {
    std::sort(tape.begin(), tape.end());
    return std::unique(tape.begin(), tape.end()) - tape.begin();
  };
  CATCH_CHECK(distinct(reference) == 18);
  for (const int workers : {0, 1, 3}) CATCH_CHECK(draws(workers, 7) == reference);
  CATCH_CHECK(draws(0, 8) != reference);
}

CATCH_TEST_CASE("optimizer state comes back to where its parameter is, and the next update is the same",
                "[T-98]") {
  const TemporaryDirectory directory;
  const auto train = [&](std::int64_t updates, const TrainOptions& options) {
    Accelerator accelerator({.seed = 2, .device = at::kCPU});
    torch::nn::Linear model(3, 2);
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.1));
    const Batches source{torch::ones({4, 3}), torch::arange(12, torch::kFloat).view({4, 3})};
    Trainer trainer(accelerator, model, optimizer, source,
                    [](torch::nn::LinearImpl& net, const at::Tensor& x) {
                      return StepOutput{.loss = net.forward(x).square().mean(), .num_samples = x.size(0)};
                    });
    (void)trainer.train({.epochs = 10, .max_steps = updates}, options);
    for (const auto& parameter : model->parameters()) {
      const auto& state = optimizer.state().at(parameter.unsafeGetTensorImpl());
      const auto& adam = static_cast<const torch::optim::AdamWParamState&>(*state);
      CATCH_CHECK(adam.exp_avg().device() == parameter.device());
      CATCH_CHECK(adam.exp_avg_sq().device() == parameter.device());
      CATCH_CHECK(adam.exp_avg().scalar_type() == torch::kFloat);
    }
    return sha256(trainer.weights());
  };
  const auto whole = train(4, {});
  (void)train(3, {.checkpoint_dir = directory.path()});
  CATCH_CHECK(train(4, {.checkpoint_dir = directory.path(), .resume_from = latest}) == whole);
}

CATCH_TEST_CASE("another batch size on resume is refused with all that differs", "[T-100]") {
  const TemporaryDirectory directory;
  OneWeightRun first(numbered_loader(32, {.batch_size = 1}), ledger, {.accumulation = 4});
  (void)first.trainer.train({.epochs = 1, .max_steps = 2}, {.checkpoint_dir = directory.path()});

  OneWeightRun second(numbered_loader(32, {.batch_size = 4}), ledger);
  CATCH_CHECK(second.trainer.planned_steps({.epochs = 1}) == 8);
  CATCH_CHECK_THROWS_WITH(
      second.trainer.train({.epochs = 1}, {.checkpoint_dir = directory.path(), .resume_from = latest}),
      Contains("[checkpoint-does-not-fit]") && Contains("gradient_accumulation_steps was 4 and is 1 now") &&
          Contains("batch_size was 1 and is 4 now"));
  CATCH_CHECK(second.w() == 0.0);
}
