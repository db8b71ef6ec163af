#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/contents.hpp"
#include "cli/source.hpp"
#include "cli/subcommand.hpp"
#include "cli/text.hpp"
#include "tensors/safetensors_format.hpp"

namespace lockstep::cli {
namespace {

using nlohmann::json;

struct Options {
  std::string path;
  bool json = false;
};

/// `files` of what is printed: all that does not take the tensors themselves.
json describe_files(const Contents& contents) {
  json files = json::array();
  for (const auto& name : contents.files) {
    json tensors = json::array();
    for (const auto& [tensor_name, tensor] : read_tensors(contents, name)) {
      tensors.push_back({{"name", tensor_name},
                         {"dtype", safetensors_dtype(tensor.scalar_type())},
                         {"shape", tensor.sizes().vec()},
                         {"norm", number_json(norm(tensor))}});
    }
    files.push_back({{"name", name}, {"bytes", bytes_of(contents, name)}, {"tensors", std::move(tensors)}});
  }
  return files;
}

void print_leaves(const std::string& title, const json& document) {
  std::cout << '\n' << title << '\n';
  Table table({Table::Align::left, Table::Align::left});
  for (const auto& [key, value] : leaves(document)) table.add({key, value});
  table.print(std::cout, "  ");
}

void print_manifest(const json& manifest) {
  json simple = json::object();
  for (const auto& [key, value] : manifest.items()) {
    if (!value.is_object()) simple[key] = value;
  }
  print_leaves("run", simple);
  for (const auto& [key, value] : manifest.items()) {
    // Files follow with their tensors, and the optimizer repeats the names of all parameters.
    if (value.is_object() && !value.empty() && key != "files" && key != "optimizer") print_leaves(key, value);
  }
}

void print_file(const json& file) {
  std::cout << '\n'
            << file["name"].get<std::string>() << ": " << size_text(file["bytes"]) << ", "
            << count_text(file["tensors"].size(), "tensor") << '\n';
  using enum Table::Align;
  Table table({left, left, right, left});
  table.add({"dtype", "shape", "norm", "name"});
  for (const auto& tensor : file["tensors"]) {
    const auto& value = tensor["norm"];
    table.add({tensor["dtype"], shape_text(tensor["shape"]),
               value.is_number() ? number_text(value) : value.get<std::string>(), printable(tensor["name"])});
  }
  table.print(std::cout, "  ");
}

void inspect(const Options& options) {
  const Contents contents = open_contents(options.path);
  const json files = describe_files(contents);
  if (options.json) {
    const json all = {{"path", contents.path.string()}, {"manifest", contents.manifest}, {"files", files}};
    std::cout << all.dump(2, ' ', false, json::error_handler_t::replace) << '\n';
    return;
  }
  std::cout << contents.path.string() << '\n';
  if (!contents.manifest.is_null()) print_manifest(contents.manifest);
  for (const auto& file : files) print_file(file);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* const command = add_file_command(
      app, "inspect",
      "Shows the state, the settings, and every tensor with its type, shape and\n"
      "Euclidean norm; all files are verified on the way. --json has all of the\n"
      "manifest.\n\n"
      "Exit code: 0 shown, 2 an error.\n\n"
      "Examples:\n"
      "  lockstep inspect runs/a/checkpoints/best\n"
      "  lockstep inspect runs/a/checkpoints --json | jq .manifest.state.step\n"
      "  lockstep inspect model.safetensors");
  command->add_option("PATH", options->path, path_help)->required();
  command->add_flag("--json", options->json, "An object instead of text");
  command->callback([options] { inspect(*options); });
}

}  // namespace lockstep::cli
