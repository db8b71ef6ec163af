// Trains a small convolutional network on Fashion-MNIST: about 91 % of the test images right after two to
// four minutes on two cores. All of the training is in run().
//
// Ctrl-C, SIGTERM or SIGKILL whenever you like: the same command goes on, to the same weights as without.
#include <torch/torch.h>
#include <lockstep/lockstep.hpp>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "fashion_mnist.hpp"
#include "net.hpp"
#include "options.hpp"

namespace ls = lockstep;

namespace {

constexpr int exit_usage = 2;
constexpr int exit_stopped = 75;  // neither success nor failure: the same command goes on

ls::StepOutput step(Net& net, const ls::Example& batch) {
  const auto logits = net.forward(batch.data);
  const auto correct = logits.argmax(1).eq(batch.target).sum();
  return {.loss = torch::nn::functional::cross_entropy(logits, batch.target),
          .num_samples = batch.target.size(0),
          .metrics = {{"accuracy", ls::MeanMetric(correct, batch.target.size(0))}}};
}

/// Of the raw and the averaged weights.
template <class Trainer>
std::string digest(const Trainer& trainer) {
  ls::NamedTensors weights = trainer.weights(ls::Weights::raw);
  for (auto& [name, tensor] : trainer.weights(ls::Weights::ema))
    weights.emplace_back("averaged." + name, tensor);
  return ls::sha256(weights);
}

int run(const CommandLine& command_line) {
  const Options& options = command_line.options;
  ls::Accelerator accelerator(options.accelerator);
  const FashionMnist data = load_fashion_mnist(options.data_dir);
  ls::DataLoader train_loader(AugmentedImages(data.train), options.loader);
  ls::DataLoader validation_loader(ls::TensorDataset(data.validation.data, data.validation.target),
                                   {.batch_size = 500});
  ls::DataLoader test_loader(ls::TensorDataset(data.test.data, data.test.target), {.batch_size = 500});

  auto net = std::make_shared<Net>();
  ls::AdamW optimizer(ls::weight_decay_groups(*net, options.weight_decay), {.lr = options.lr});
  ls::Evaluator validation(accelerator, {{"validation", validation_loader}}, step);
  ls::RunLogger logger(options.run_dir,
                       {.is_main_process = accelerator.is_main_process(), .quiet = options.quiet});
  ls::Trainer trainer(accelerator, net, optimizer, train_loader, step,
                      {.evaluator = &validation, .ema_decay = options.ema_decay, .logger = &logger});

  const std::int64_t planned = trainer.planned_steps(options.train);
  trainer.set_scheduler(
      options.schedule.value_or(ls::WarmupDecay{.total_steps = planned, .warmup_steps = planned / 20}),
      options.schedule_every);

  ls::StopRequest stop;
  const auto train = [&] {
    const auto signals = stop.catch_signals();
    return trainer.train(
        options.train,
        {.checkpoint_dir = options.run_dir / "checkpoints",
         .resume_from = options.resume ? std::optional<ls::ResumeFrom>(ls::latest) : std::nullopt,
         .stop = &stop,
         .settings = command_line.settings});
  };
  const ls::TrainState state = train();

  nlohmann::ordered_json result = {{"step", state.step},
                                   {"epoch", state.epoch},
                                   {"samples", state.samples},
                                   {"validation/loss", nullptr},
                                   {"validation/accuracy", nullptr},
                                   {"test/accuracy", nullptr},
                                   {"weights_sha256", digest(trainer)},
                                   {"stop_reason", nullptr}};
  if (state.stop_reason) {
    result["stop_reason"] = *state.stop_reason;
    logger.info("stopped by " + *state.stop_reason + " and saved; the same command goes on from here");
  } else {
    const auto weights_file = options.run_dir / "model.safetensors";
    trainer.save_model(weights_file, ls::Weights::ema);
    if (options.train.evaluate_every) {
      const auto validated = trainer.evaluate(ls::Weights::ema).at("validation");
      result["validation/loss"] = validated.at("loss");
      result["validation/accuracy"] = validated.at("accuracy");
      ls::Evaluator test(accelerator, {{"test", test_loader}}, step);
      result["test/accuracy"] = trainer.evaluate(test, ls::Weights::ema).at("test").at("accuracy");
    }
    logger.info("the averaged weights are in " + weights_file.string());
  }
  if (accelerator.is_main_process()) std::cout << result.dump() << std::endl;
  return state.stop_reason ? exit_stopped : EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a small convolutional network on Fashion-MNIST.");
  try {
    return run(read_command_line(app, argc, argv));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == EXIT_SUCCESS ? EXIT_SUCCESS : exit_usage;
  } catch (const std::exception& error) {
    std::cerr << "fashion_mnist: " << error.what() << '\n';
    ls::report_fatal_error(error);
    return EXIT_FAILURE;
  }
}
