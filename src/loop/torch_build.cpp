#include "loop/torch_build.hpp"

#include <ATen/Version.h>

#include <sstream>
#include <string_view>

namespace lockstep {
namespace {

constexpr std::string_view item = "  - ";
constexpr std::string_view settings = "Build settings: ";

}  // namespace

std::vector<std::string> torch_build(const std::string& configuration) {
  std::vector<std::string> build;
  std::istringstream lines(configuration);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(item)) continue;
    line.erase(0, item.size());
    if (line.starts_with("CPU capability")) continue;
    if (!line.starts_with(settings)) {
      build.push_back(line);
      continue;
    }
    std::istringstream fields(line.substr(settings.size()));
    for (std::string field; std::getline(fields >> std::ws, field, ',');) {
      for (const auto* kept : {"BLAS_INFO=", "BUILD_TYPE=", "COMMIT_SHA="}) {
        if (field.starts_with(kept)) build.push_back(field);
      }
    }
  }
  return build;
}

const std::vector<std::string>& torch_build() {
  static const std::vector<std::string> build = torch_build(at::show_config());
  return build;
}

}  // namespace lockstep
