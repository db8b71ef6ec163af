// What all commands on files have in common.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace lockstep::cli {

/// The subcommand of that name, with its description. `footer`: more about it, and examples.
CLI::App* add_file_command(CLI::App& app, const std::string& name, const std::string& footer);

}  // namespace lockstep::cli
