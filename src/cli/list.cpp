#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "cli/commands.hpp"
#include "cli/subcommand.hpp"
#include "cli/text.hpp"
#include "lockstep/base/messages.hpp"
#include "lockstep/files/checkpoint_folder.hpp"

namespace lockstep::cli {
namespace {

struct Options {
  std::string directory;
  bool json = false;
};

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

nlohmann::json to_json(const CheckpointEntry& entry) {
  nlohmann::json json = {{"path", entry.directory.string()}, {"names", entry.names}, {"readable", entry.readable()}};
  if (!entry.readable()) {
    json["problem"] = entry.problem;
    return json;
  }
  json.update({{"run_id", entry.run_id},
               {"step", entry.step},
               {"epoch", entry.epoch},
               {"batches", entry.batches},
               {"save_index", entry.save_index},
               {"bytes", entry.bytes}});
  return json;
}

void print_table(const std::vector<CheckpointEntry>& entries) {
  using enum Table::Align;
  Table table({right, right, right, right, left, left, left});
  table.add({"step", "epoch", "batches", "size", "run", "folder", "names"});
  for (const auto& entry : entries) {
    const std::string folder = entry.directory.filename();
    if (entry.readable()) {
      table.add({std::to_string(entry.step), std::to_string(entry.epoch), std::to_string(entry.batches),
                 size_text(entry.bytes), printable(entry.run_id).substr(0, 8), folder, joined(entry.names)});
    } else {
      table.add({"?", "?", "?", "?", "?", folder, joined(entry.names)});
    }
  }
  table.print(std::cout, "");
  for (const auto& entry : entries) {
    if (!entry.readable()) std::cout << "unreadable: " << entry.problem << '\n';
  }
}

void list(const Options& options) {
  if (!std::filesystem::is_directory(options.directory)) {
    throw message::checkpoint_not_found(options.directory, "it is no folder", {});
  }
  const auto entries = list_checkpoints(options.directory);
  if (options.json) {
    auto json = nlohmann::json::array();
    for (const auto& entry : entries) json.push_back(to_json(entry));
    std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  } else if (entries.empty()) {
    std::cout << "no checkpoints in " << options.directory << '\n';
  } else {
    print_table(entries);
  }
}

}  // namespace

void add_list(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* const command =
      add_file_command(app, "list",
                       "Newest first, by what the manifests say; those whose manifest cannot be read\n"
                       "come last, with the reason. `lockstep verify` checks the other files too.\n\n"
                       "Exit code: 0 the folder was read, 2 an error.\n\n"
                       "Examples:\n"
                       "  lockstep list runs/a/checkpoints\n"
                       "  lockstep list runs/a/checkpoints --json | jq '.[0].step'");
  command->add_option("DIR", options->directory, "A folder of checkpoints")->required();
  command->add_flag("--json", options->json, "An array of objects instead of a table");
  command->callback([options] { list(*options); });
}

}  // namespace lockstep::cli
