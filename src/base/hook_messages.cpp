#include "base/hook_messages.hpp"

#include <fmt/format.h>

namespace lockstep::message {

std::string warning_hook_failed(const std::string& cause) {
  return fmt::format("a hook that was told of the error that ends the run has failed itself: {}", cause);
}

std::string problem_hook_setting(const std::string& setting, const std::string& value, const std::string& allowed) {
  return fmt::format("the hook's {} is {}: give {}.", setting, value, allowed);
}

}  // namespace lockstep::message
