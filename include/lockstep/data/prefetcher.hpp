// Threads that make batches ahead of their use and hand them over in order.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace lockstep {

/// As long as it lives, EpochStreams that this thread opens have no worker threads.
class [[nodiscard]] NoWorkersScope {
 public:
  NoWorkersScope() : outer_(std::exchange(active_, true)) {}
  ~NoWorkersScope() { active_ = outer_; }
  NoWorkersScope(const NoWorkersScope&) = delete;
  NoWorkersScope& operator=(const NoWorkersScope&) = delete;

  [[nodiscard]] static bool active() { return active_; }

 private:
  static inline thread_local bool active_ = false;
  bool outer_;
};

/// Calls `load(n)` for n from `first` to `end - 1` in `workers` threads, at most two a worker ahead of the
/// consumer.
///
/// The threads start with the object and end with it; destroying it early waits for the calls that have
/// begun. `load` is called from several threads at once. next() is for one consumer.
template <class Batch>
class Prefetcher {
 public:
  Prefetcher(std::function<Batch(std::int64_t)> load, std::int64_t first, std::int64_t end, int workers)
      : load_(std::move(load)),
        claimed_(first),
        delivered_(first),
        end_(end),
        slots_(2 * static_cast<std::size_t>(workers)) {
    threads_.reserve(static_cast<std::size_t>(workers));
    for (int i = 0; i < workers; ++i) {
      threads_.emplace_back([this](std::stop_token stop) { work(stop); });
    }
  }

  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Asks all threads to stop before the first is waited for, so that none begins another batch meanwhile.
  ~Prefetcher() {
    for (auto& thread : threads_) thread.request_stop();
  }

  /// The next batch; throws what `load` threw for it, and goes on with the one after it when called again.
  /// To be called `end - first` times at most.
  Batch next() {
    std::unique_lock lock(mutex_);
    Slot& slot = slot_of(delivered_);
    loaded_.wait(lock, [&] { return slot.batch.has_value() || slot.error; });
    Slot result = std::exchange(slot, Slot{});
    ++delivered_;
    lock.unlock();
    room_.notify_one();
    if (result.error) std::rethrow_exception(result.error);
    return *std::move(result.batch);
  }

 private:
  struct Slot {
    std::optional<Batch> batch = {};
    std::exception_ptr error = nullptr;
  };

  Slot& slot_of(std::int64_t number) { return slots_[static_cast<std::size_t>(number) % slots_.size()]; }

  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    for (;;) {
      room_.wait(lock, stop, [&] {
        return claimed_ == end_ || claimed_ - delivered_ < static_cast<std::int64_t>(slots_.size());
      });
      if (stop.stop_requested() || claimed_ == end_) return;
      const std::int64_t number = claimed_++;
      lock.unlock();
      Slot result;
      try {
        result.batch.emplace(load_(number));
      } catch (...) {
        result.error = std::current_exception();
      }
      lock.lock();
      slot_of(number) = std::move(result);
      loaded_.notify_one();
    }
  }

  std::function<Batch(std::int64_t)> load_;
  std::mutex mutex_;
  std::condition_variable_any room_;
  std::condition_variable loaded_;
  std::int64_t claimed_;
  std::int64_t delivered_;
  std::int64_t end_;
  std::vector<Slot> slots_;
  std::vector<std::jthread> threads_;  // last: they end before what they use
};

}  // namespace lockstep
