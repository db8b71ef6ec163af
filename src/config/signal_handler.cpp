#include "config/signal_handler.hpp"

#include <cassert>

namespace lockstep {

struct sigaction set_signal_handler(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  struct sigaction former = {};
  [[maybe_unused]] const int failed = sigaction(signal, &action, &former);
  assert(!failed);
  return former;
}

}  // namespace lockstep
