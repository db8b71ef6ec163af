#include "cli/weights_option.hpp"

#include <map>
#include <string>

namespace lockstep::cli {

void add_weights_option(CLI::App& command, Weights& weights) {
  const std::map<std::string, Weights> kinds = {{"raw", Weights::raw}, {"ema", Weights::ema}};
  command
      .add_option_function<std::string>(
          "--weights", [kinds, &weights](const std::string& name) { weights = kinds.at(name); },
          "Of a checkpoint: raw, or ema, the averaged ones;\nraw by default")
      ->check(CLI::IsMember({"raw", "ema"}));
}

}  // namespace lockstep::cli
