// The commands of the program `lockstep`, one file each.
#pragma once

#include <array>

namespace CLI {
class App;
}

namespace lockstep::cli {

/// What the program ends with where a question is answered by no: a checkpoint is damaged, two are not equal.
inline constexpr int exit_no = 1;
/// And after a wrong command line, or an error.
inline constexpr int exit_trouble = 2;

struct CommandName {
  const char* name;
  const char* description;
};

/// Those that need tensors, and therefore Torch, whose libraries take longer to load than `lockstep launch` may take to
/// start. They are in a program of their own, which `lockstep` becomes.
inline constexpr const char* file_program = "lockstep-files";
inline constexpr std::array<CommandName, 7> file_commands = {{
    {"inspect", "Shows what a checkpoint or a weights file holds"},
    {"verify", "Checks every byte of checkpoints"},
    {"diff", "Compares two checkpoints or weights files"},
    {"list", "Shows the checkpoints in a folder"},
    {"prune", "Removes old checkpoints from a folder"},
    {"export", "Writes the weights of a checkpoint to one file"},
    {"average", "Writes the mean of several checkpoints' weights"},
}};

/// Each adds its subcommand; `exit_code` gets what the program is to end with, once it has run.
void add_launch(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app);
void add_verify(CLI::App& app, int& exit_code);
void add_diff(CLI::App& app, int& exit_code);
void add_list(CLI::App& app);
void add_prune(CLI::App& app);
void add_export(CLI::App& app);
void add_average(CLI::App& app);

}  // namespace lockstep::cli
