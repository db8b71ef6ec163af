#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/source.hpp"
#include "cli/subcommand.hpp"
#include "lockstep/base/error.hpp"
#include "lockstep/files/checkpoint_folder.hpp"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> checkpoints_at(const std::string& given) {
  if (!holds_checkpoints(given)) return {given};
  std::vector<fs::path> checkpoints;
  for (const auto& entry : list_checkpoints(given)) checkpoints.push_back(entry.directory);
  return checkpoints;
}

/// Returns whether all are whole.
bool verify(const std::vector<std::string>& paths) {
  bool all_whole = true;
  for (const auto& given : paths) {
    for (const auto& checkpoint : checkpoints_at(given)) {
      try {
        verify_checkpoint(checkpoint);
        std::cout << "whole    " << checkpoint.string() << std::endl;
      } catch (const CheckpointError& error) {
        if (error.id() == "checkpoint-not-found") throw;
        all_whole = false;
        std::cout << "damaged  " << checkpoint.string() << std::endl;
        std::cerr << "lockstep: " << error.what() << '\n';
      }
    }
  }
  return all_whole;
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto paths = std::make_shared<std::vector<std::string>>();
  auto* const command = add_file_command(
      app, "verify",
      "Reads every file and compares its size, its layout, and the checksums of the\n"
      "file and of each tensor with those noted when it was written.\n\n"
      "Exit code: 0 all are whole, 1 one is damaged, 2 another error.\n\n"
      "Examples:\n"
      "  lockstep verify runs/a/checkpoints\n"
      "  lockstep verify runs/a/checkpoints/best && cp -r runs/a/checkpoints/best/ safe");
  command->add_option("PATH", *paths, "Step folders, names, or folders of checkpoints, of\nwhich all are checked")
      ->required();
  command->callback([paths, &exit_code] {
    if (!verify(*paths)) exit_code = exit_no;
  });
}

}  // namespace lockstep::cli
