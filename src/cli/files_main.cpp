// The program `lockstep-files`: the commands of `lockstep` that need tensors.
#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "cli/commands.hpp"

int main(int argc, char** argv) {
  using namespace lockstep::cli;
  CLI::App app("Tools for training with lockstep.", "lockstep");
  app.require_subcommand(1);
  int exit_code = EXIT_SUCCESS;
  add_inspect(app);
  add_verify(app, exit_code);
  add_diff(app, exit_code);
  add_list(app);
  add_prune(app);
  add_export(app);
  add_average(app);
  // Sums must not depend on the machine, and starting threads costs more than they save here.
  at::set_num_threads(1);
  try {
    app.parse(argc, argv);
    std::cout.flush();
    if (!std::cout) {
      std::cerr << "lockstep: the output could not be written\n";
      return exit_trouble;
    }
    return exit_code;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == EXIT_SUCCESS ? EXIT_SUCCESS : exit_trouble;
  } catch (const std::exception& error) {
    std::cout.flush();
    std::cerr << "lockstep: " << error.what() << '\n';
    return exit_trouble;
  }
}
