#include "ranks/detached.hpp"

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace lockstep {

struct Detached::State {
  std::mutex mutex;
  std::condition_variable ended;
  Outcome outcome = Outcome::running;
};

Detached::Detached(std::function<void()> body) : state_(std::make_shared<State>()) {
  std::thread([state = state_, work = std::move(body)]() mutable {
    auto outcome = Outcome::returned;
    try {
      work();
    } catch (const std::exception&) {
      outcome = Outcome::threw;
    }
    work = nullptr;  // destroys what it holds before anybody goes on
    const std::lock_guard lock(state->mutex);
    state->outcome = outcome;
    state->ended.notify_all();
  }).detach();
}

Detached::Outcome Detached::within(std::chrono::milliseconds limit) const {
  std::unique_lock lock(state_->mutex);
  state_->ended.wait_for(lock, limit, [this] { return state_->outcome != Outcome::running; });
  return state_->outcome;
}

}  // namespace lockstep
