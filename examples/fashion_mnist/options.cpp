#include "options.hpp"

#include <CLI/CLI.hpp>
#include <lockstep/base/error.hpp>
#include <string>

namespace {

template <class Parse>
auto or_usage_error(const std::string& flag, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const lockstep::Error& error) {
    throw CLI::ValidationError(flag, error.what());
  } catch (const c10::Error& error) {
    throw CLI::ValidationError(flag, error.what_without_backtrace());
  }
}

CLI::Option* add_interval(CLI::App& app, const std::string& flag, lockstep::Interval& interval,
                          const std::string& help) {
  const auto read = [flag, &interval](const std::string& text) {
    interval =
        or_usage_error(flag, text, [](const std::string& given) { return lockstep::Interval::parse(given); });
  };
  return app.add_option_function<std::string>(flag, read, help)
      ->type_name("INTERVAL")
      ->default_str("\"" + to_string(interval) + "\"");
}

/// CLI11 reads -1 as the largest unsigned number.
const CLI::Validator not_negative(
    [](const std::string& text) { return text.starts_with('-') ? "must not be negative" : ""; }, "");

}  // namespace

void add_flags(CLI::App& app, Options& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--run-dir", options.run_dir, "Where logs, checkpoints and the trained weights go");
  app.add_option("--data-dir", options.data_dir, "The folder of Fashion-MNIST's four files")
      ->envname("FASHION_MNIST_DIR");
  app.add_option("--epochs", options.epochs, "Passes over the training images, resumed ones included");
  app.add_option("--max-steps", options.max_steps, "Updates at which to end, if that comes first");
  app.add_option("--batch-size", options.batch_size, "Images in a microbatch");
  app.add_option("--accumulate", options.accumulate, "Microbatches behind an update");
  app.add_option("--ema-decay", options.ema_decay, "Decay of the averaged weights at each update, below 1");
  app.add_option("--lr", options.lr, "Learning rate after the warm-up")->check(not_negative);
  app.add_option("--seed", options.seed, "Of initial weights, order of images, augmentation and dropout")
      ->check(not_negative);
  app.add_option("--workers", options.workers, "Threads that prepare batches; changes no result");
  const auto read_device = [&options](const std::string& text) {
    options.device =
        or_usage_error("--device", text, [](const std::string& given) { return at::Device(given); });
  };
  app.add_option_function<std::string>("--device", read_device,
                                       "cpu, cuda or cuda:1; by default CUDA if there is one")
      ->type_name("DEVICE");
  CLI::Option* const evaluate_every =
      add_interval(app, "--evaluate-every", options.evaluate_every, "Updates, or as in \"1 epoch\"");
  add_interval(app, "--checkpoint-every", options.checkpoint_every, "Updates, or as in \"1 epoch\"");
  app.add_flag("--no-evaluate", options.no_evaluate, "Neither validation nor test")->excludes(evaluate_every);
  app.add_flag("--resume,!--no-resume", options.resume, "Go on from the newest checkpoint in the run folder");
  app.add_flag("--quiet", options.quiet, "Only warnings, errors and the result");
}
