// lockstep launch: starts the ranks of a run on this machine.
#pragma once

namespace CLI {
class App;
}

namespace lockstep::cli {

/// What the program ends with after a wrong command line.
inline constexpr int exit_usage = 2;

/// Adds the subcommand; `exit_code` gets what the program is to end with, once it has run.
void add_launch(CLI::App& app, int& exit_code);

}  // namespace lockstep::cli
