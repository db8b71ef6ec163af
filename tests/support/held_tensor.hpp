// A tensor that tells when it is let go, and can hold up whoever does it: a background save that is still under way.
#pragma once

#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>

namespace lockstep::test {

/// Holds up each thread that frees one of its tensors while it is shut. Waits end with an error after ten seconds.
class Gate {
 public:
  /// Without elements: staging leaves it as it is, so that it is freed when the save is over.
  [[nodiscard]] at::Tensor tensor() {
    return torch::from_blob(&anchor_, {0}, [shared = shared_](void*) { shared->pass(); });
  }
  void shut() { shared_->set(true); }
  void open() { shared_->set(false); }
  /// Until as many tensors have come to the gate.
  void wait_for(int arrivals) { shared_->wait_for(arrivals); }

 private:
  struct Shared {
    void pass() {
      std::unique_lock lock(mutex);
      ++arrived;
      changed.notify_all();
      changed.wait_for(lock, limit, [this] { return !shut; });
    }
    void set(bool to) {
      const std::lock_guard lock(mutex);
      shut = to;
      changed.notify_all();
    }
    void wait_for(int arrivals) {
      std::unique_lock lock(mutex);
      if (!changed.wait_for(lock, limit, [&] { return arrived >= arrivals; })) {
        throw std::runtime_error("no save came to its end within ten seconds");
      }
    }

    static constexpr std::chrono::seconds limit{10};
    std::mutex mutex;
    std::condition_variable changed;
    bool shut = false;
    int arrived = 0;
  };

  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  float anchor_ = 0;
};

/// Puts a tensor of the gate into every checkpoint of a Trainer that registers it.
struct GatedState {
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> state() const { return {{"gate", gate.tensor()}}; }
  void load_state(const std::vector<std::pair<std::string, at::Tensor>>&) {}

  Gate& gate;
};

}  // namespace lockstep::test
