#include "lockstep/config/stop_request.hpp"

#include <array>
#include <csignal>
#include <utility>

#include "config/signal_handler.hpp"
#include "lockstep/base/messages.hpp"

namespace lockstep {
namespace {

struct CaughtSignal {
  int number;
  const char* name;
};
constexpr std::array caught_signals = {CaughtSignal{SIGINT, "SIGINT"}, CaughtSignal{SIGTERM, "SIGTERM"},
                                       CaughtSignal{SIGUSR1, "SIGUSR1"}};

// Process-wide like the handlers themselves, and without a pointer to the StopRequest: a handler that still
// runs in another thread while the scope ends finds nothing that could be gone.
std::atomic<int> first_signal = 0;
std::atomic<bool> end_asked = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

std::atomic<bool> scope_exists = false;
std::array<struct sigaction, caught_signals.size()> former_actions;

extern "C" void note_signal(int number) {
  int none = 0;
  first_signal.compare_exchange_strong(none, number);
  if (number != SIGUSR1 && end_asked.exchange(true)) {
    std::signal(number, SIG_DFL);
    std::raise(number);
  }
}

void forget_signals() {
  first_signal = 0;
  end_asked = false;
}

}  // namespace

void StopRequest::request(std::string reason) {
  const std::lock_guard lock(mutex_);
  absorb_signal();
  if (!reason_) reason_ = std::move(reason);
  asked_ = true;
}

std::optional<std::string> StopRequest::reason() const {
  if (!asked_ && !(catching_ && first_signal != 0)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  absorb_signal();
  return reason_;
}

void StopRequest::clear() {
  const std::lock_guard lock(mutex_);
  reason_.reset();
  asked_ = false;
  if (catching_) forget_signals();
}

void StopRequest::absorb_signal() const {
  const int number = catching_ ? first_signal.load() : 0;
  if (number == 0 || reason_) return;
  for (const auto& signal : caught_signals) {
    if (signal.number == number) reason_ = signal.name;
  }
  asked_ = true;
}

StopRequest::SignalScope StopRequest::catch_signals() {
  if (scope_exists.exchange(true)) throw message::signals_already_caught();
  return SignalScope(*this);
}

StopRequest::SignalScope::SignalScope(StopRequest& owner) : owner_(owner) {
  forget_signals();
  owner_.catching_ = true;
  for (std::size_t i = 0; i < caught_signals.size(); ++i) {
    former_actions[i] = set_signal_handler(caught_signals[i].number, note_signal);
  }
}

StopRequest::SignalScope::~SignalScope() {
  for (std::size_t i = 0; i < caught_signals.size(); ++i) {
    sigaction(caught_signals[i].number, &former_actions[i], nullptr);
  }
  const std::lock_guard lock(owner_.mutex_);
  owner_.absorb_signal();
  owner_.catching_ = false;
  scope_exists = false;
}

}  // namespace lockstep
