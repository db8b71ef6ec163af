#include "lockstep/config/save_request.hpp"

#include <csignal>

#include "base/saving_messages.hpp"
#include "config/signal_handler.hpp"

namespace lockstep {
namespace {

// Process-wide like the handler itself, and without a pointer to the SaveRequest: a handler that still runs in another
// thread while the scope ends finds nothing that could be gone.
std::atomic<bool> signalled = false;
static_assert(std::atomic<bool>::is_always_lock_free);

std::atomic<bool> scope_exists = false;
struct sigaction former_action;

extern "C" void note_save_signal(int) { signalled = true; }

}  // namespace

bool SaveRequest::take() noexcept {
  const bool by_signal = catching_ && signalled && signalled.exchange(false);
  return (asked_ && asked_.exchange(false)) || by_signal;
}

SaveRequest::SignalScope SaveRequest::catch_signal() {
  if (scope_exists.exchange(true)) throw message::save_signal_already_caught();
  return SignalScope(*this);
}

SaveRequest::SignalScope::SignalScope(SaveRequest& owner) : owner_(owner) {
  signalled = false;
  owner_.catching_ = true;
  former_action = set_signal_handler(SIGUSR2, note_save_signal);
}

SaveRequest::SignalScope::~SignalScope() {
  sigaction(SIGUSR2, &former_action, nullptr);
  if (signalled) owner_.request();
  owner_.catching_ = false;
  scope_exists = false;
}

}  // namespace lockstep
