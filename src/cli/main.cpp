// The program `lockstep`: one subcommand a file. It does without Torch, so that it starts in milliseconds.
#include <CLI/CLI.hpp>
#include <cstdlib>

#include "cli/launch.hpp"
#include "lockstep/base/version.hpp"

int main(int argc, char** argv) {
  CLI::App app("Tools for training with lockstep.", "lockstep");
  app.set_version_flag("--version", LOCKSTEP_VERSION);
  app.require_subcommand(1);
  int exit_code = EXIT_SUCCESS;
  lockstep::cli::add_launch(app, exit_code);
  try {
    app.parse(argc, argv);
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == EXIT_SUCCESS ? EXIT_SUCCESS : lockstep::cli::exit_usage;
  }
}
