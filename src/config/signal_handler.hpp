// How the process's handlers of signals are put in place.
#pragma once

#include <signal.h>

namespace lockstep {

/// Puts a handler in place and returns what was there. Reads and writes under way go on when the signal comes: what is
/// asked for by a signal must not fail a save.
struct sigaction set_signal_handler(int signal, void (*handler)(int));

}  // namespace lockstep
