#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/source.hpp"
#include "cli/subcommand.hpp"
#include "cli/text.hpp"
#include "cli/weights_option.hpp"
#include "files/weights_at.hpp"
#include "lockstep/files/weights_file.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::string path;
  Weights weights = Weights::raw;
  std::string to;
};

void export_weights(const Options& options) {
  const auto source = find_source(options.path);
  const NamedTensors tensors = weights_at(source, options.weights);
  save_weights(options.to, tensors);
  std::cout << "wrote " << count_text(tensors.size(), "tensor") << " of " << source.string() << " to " << options.to
            << '\n';
}

}  // namespace

void add_export(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* const command = add_file_command(
      app, "export",
      "Verifies the checkpoint and writes its parameters and buffers by name. The file\n"
      "is complete or as it was before. Python reads it with\n"
      "safetensors.torch.load_file(path) or torch.load(path, weights_only=True).\n\n"
      "Exit code: 0 written, 2 an error.\n\n"
      "Examples:\n"
      "  lockstep export runs/a/checkpoints/best --weights ema --to model.safetensors\n"
      "  lockstep export runs/a/checkpoints --to model.pt");
  command->add_option("PATH", options->path, path_help)->required();
  add_weights_option(*command, options->weights);
  command->add_option("--to", options->to, "The file to write: .safetensors or .pt")->required();
  command->callback([options] { export_weights(*options); });
}

}  // namespace lockstep::cli
