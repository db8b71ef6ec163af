#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/source.hpp"
#include "cli/subcommand.hpp"
#include "cli/text.hpp"
#include "cli/weights_option.hpp"
#include "lockstep/files/average_weights.hpp"
#include "lockstep/files/weights_file.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::vector<std::string> paths;
  Weights weights = Weights::raw;
  std::string to;
};

void average(const Options& options) {
  std::vector<std::filesystem::path> sources;
  for (const auto& path : options.paths) sources.push_back(find_source(path));
  const NamedTensors mean = average_weights(sources, options.weights);
  save_weights(options.to, mean);
  std::cout << "wrote the mean of " << sources.size() << ", " << count_text(mean.size(), "tensor") << ", to "
            << options.to << '\n';
}

}  // namespace

void add_average(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* const command = add_file_command(
      app, "average",
      "Sums in double and rounds once. Tensors that are not floating-point, counters\n"
      "say, come from the last PATH. Checkpoints whose tensors differ in name, shape or\n"
      "type are refused.\n\n"
      "Exit code: 0 written, 2 an error.\n\n"
      "Example:\n"
      "  lockstep average runs/a/checkpoints/step-* --to mean.safetensors");
  command->add_option("PATH", options->paths, path_help)->required();
  add_weights_option(*command, options->weights);
  command->add_option("--to", options->to, "The file to write: .safetensors or .pt")->required();
  command->callback([options] { average(*options); });
}

}  // namespace lockstep::cli
