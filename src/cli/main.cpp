// The program `lockstep`. It does without Torch, so that it starts in milliseconds; commands that need tensors are in
// lockstep-files beside it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "cli/commands.hpp"
#include "lockstep/base/version.hpp"

namespace lockstep::cli {
namespace {

/// Becomes the program with the commands that need tensors; comes back only if there is none.
int become_file_program(char** argv) {
  std::error_code no_proc;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", no_proc).parent_path() / file_program;
  execv(program.c_str(), argv);
  std::cerr << "lockstep: cannot start " << program.string() << ": " << std::strerror(errno)
            << ". It is installed beside lockstep; install both again.\n";
  return exit_trouble;
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  using namespace lockstep::cli;
  CLI::App app("Tools for training with lockstep.", "lockstep");
  app.set_version_flag("--version", LOCKSTEP_VERSION);
  app.require_subcommand(1);
  app.footer("lockstep COMMAND --help says more of each.");
  int exit_code = EXIT_SUCCESS;
  add_launch(app, exit_code);
  for (const auto& command : file_commands) {
    auto* const stub = app.add_subcommand(command.name, command.description);
    // All that follows, --help included, is for the other program.
    stub->set_help_flag();
    stub->prefix_command();
    stub->callback([argv, &exit_code] { exit_code = become_file_program(argv); });
  }
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == EXIT_SUCCESS ? EXIT_SUCCESS : exit_trouble;
  }
}
