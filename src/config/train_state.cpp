#include "lockstep/config/train_state.hpp"

#include <cassert>

namespace lockstep {

std::string to_string(EndReason reason) {
  switch (reason) {
    case EndReason::none:
      return "none";
    case EndReason::epochs:
      return "epochs";
    case EndReason::max_steps:
      return "max_steps";
    case EndReason::early_stop:
      return "early_stop";
    case EndReason::stop_request:
      return "stop_request";
  }
  assert(false);
  return {};
}

}  // namespace lockstep
