#include "cli/subcommand.hpp"

#include <algorithm>
#include <cassert>

#include "cli/commands.hpp"

namespace lockstep::cli {

CLI::App* add_file_command(CLI::App& app, const std::string& name, const std::string& footer) {
  const auto found = std::find_if(file_commands.begin(), file_commands.end(),
                                  [&](const CommandName& command) { return command.name == name; });
  assert(found != file_commands.end());
  auto* const command = app.add_subcommand(name, found->description);
  command->footer(footer);
  return command;
}

}  // namespace lockstep::cli
