#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/subcommand.hpp"
#include "cli/text.hpp"
#include "lockstep/files/checkpoint_folder.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::string directory;
  std::int64_t keep = 0;
  bool dry_run = false;
};

void prune(const Options& options) {
  const auto gone = options.dry_run ? superfluous_checkpoints(options.directory, options.keep)
                                    : prune_checkpoints(options.directory, options.keep);
  for (const auto& directory : gone) {
    const auto path = std::filesystem::path(options.directory) / directory.filename();
    std::cout << (options.dry_run ? "would remove " : "removed ") << path.string() << '\n';
  }
  if (gone.empty()) std::cout << "nothing to remove\n";
}

}  // namespace

void add_prune(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* const command = add_file_command(
      app, "prune",
      "Of each run in the folder, its newest checkpoints stay, and whatever last, best\n"
      "and final name. Never removed are the newest valid one, unreadable ones, and\n"
      "folders that hold a file of somebody else. A folder that a program is saving to\n"
      "is refused.\n\n"
      "Exit code: 0 done, 2 an error.\n\n"
      "Examples:\n"
      "  lockstep prune runs/a/checkpoints --keep 3 --dry-run\n"
      "  lockstep prune runs/a/checkpoints --keep 3");
  command->add_option("DIR", options->directory, "A folder of checkpoints")->required();
  command->add_option("--keep", options->keep, "How many of the newest stay, besides those with a\nname")
      ->required()
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--dry-run", options->dry_run, "Only say what would be removed");
  command->callback([options] { prune(*options); });
}

}  // namespace lockstep::cli
