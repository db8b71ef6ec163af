#include "config/debug_variable.hpp"

#include <cstdlib>
#include <string>

#include "base/loop_messages.hpp"

namespace lockstep {

bool debug_variable() {
  const char* const variable = std::getenv("LOCKSTEP_DEBUG");
  const std::string text = variable ? variable : "";
  if (text == "1" || text == "true" || text == "on") return true;
  if (text.empty() || text == "0") return false;
  throw message::invalid_debug_variable(text);
}

}  // namespace lockstep
