#include "ranks/meeting.hpp"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/version.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/rank_messages.hpp"
#include "lockstep/base/version.hpp"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds patience{1000};
constexpr milliseconds pause{5};

std::string numbered(const std::string& key, int rank) { return key + "/" + std::to_string(rank); }

c10::intrusive_ptr<c10d::Store> file_store(const Launch& launch) {
  return c10::make_intrusive<c10d::FileStore>(launch.file, launch.world_size);
}

c10::intrusive_ptr<c10d::Store> tcp_store(const Launch& launch, bool serves, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.port);
  options.isServer = serves;
  options.waitWorkers = false;
  options.timeout = timeout;
  options.multiTenant = true;
  try {
    return c10::make_intrusive<c10d::TCPStore>(launch.host, options);
  } catch (const c10::Error& error) {
    if (std::string(error.what()).find("built without libuv") == std::string::npos) throw;
  }
  options.useLibUV = false;
  return c10::make_intrusive<c10d::TCPStore>(launch.host, options);
}

/// Runs `body` on a thread of its own and waits for it until `limit` is over; it may go on then. A request to a store
/// whose server is frozen never returns. Whatever `body` throws counts as an answer that did not come.
bool answers_within(milliseconds limit, std::function<void()> body) noexcept {
  struct Outcome {
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
    bool succeeded = false;
  };
  try {
    auto outcome = std::make_shared<Outcome>();
    std::thread([outcome, body = std::move(body)] {
      bool succeeded = true;
      try {
        body();
      } catch (...) {
        succeeded = false;
      }
      const std::lock_guard lock(outcome->mutex);
      outcome->ended = true;
      outcome->succeeded = succeeded;
      outcome->changed.notify_all();
    }).detach();
    std::unique_lock lock(outcome->mutex);
    outcome->changed.wait_for(lock, limit, [&] { return outcome->ended; });
    return outcome->succeeded;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

std::string meeting_point(const Launch& launch) {
  return launch.host.empty() ? "file://" + launch.file : launch.host + ":" + std::to_string(launch.port);
}

std::string cause_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

Meeting::Meeting(const Launch& launch, milliseconds timeout)
    : launch_(launch),
      timeout_(timeout),
      serves_(!launch.host.empty() && !launch.listened_to && launch.rank == 0) {
  try {
    open();
    meet();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // Whoever cannot reach the store has not met the rank that serves it.
    const bool served_by_rank_0 = !launch_.host.empty() && !launch_.listened_to && launch_.rank != 0;
    fail_to_join(served_by_rank_0 ? std::vector{0} : std::vector<int>{}, cause_of(error));
  }
}

void Meeting::open() {
  auto store = launch_.host.empty() ? file_store(launch_) : tcp_store(launch_, serves_, timeout_);
  store_ = c10::make_intrusive<c10d::PrefixStore>("lockstep/" + std::to_string(launch_.restart), std::move(store));
  store_->setTimeout(timeout_);
}

void Meeting::meet() {
  if (store_->add(numbered("came", launch_.rank), 1) != 1) {
    throw message::rank_taken(launch_.rank, meeting_point(launch_));
  }
  const std::string version = std::string("lockstep ") + LOCKSTEP_VERSION + ", torch " + TORCH_VERSION;
  store_->set(numbered("version", launch_.rank), version);
  std::vector<std::string> keys;
  for (int rank = 0; rank < launch_.world_size; ++rank) keys.push_back(numbered("version", rank));
  try {
    store_->wait(keys, std::max(time_left(), milliseconds(1)));
  } catch (const c10::Error& error) {
    const auto missing = others_without("version");
    if (missing.empty()) throw;
    fail_to_join(missing, cause_of(error));
  }
  std::vector<std::string> differences;
  for (int rank = 0; rank < launch_.world_size; ++rank) {
    const auto theirs = store_->get_to_str(keys[static_cast<std::size_t>(rank)]);
    if (theirs != version) differences.push_back(message::difference_of_version(rank, theirs, version));
  }
  if (!differences.empty()) throw message::ranks_differ(differences);
}

Meeting::~Meeting() {
  if (!store_) return;
  answers_within(patience, [store = store_, key = numbered("left", launch_.rank)] { store->set(key, "1"); });
  if (!serves_) return;
  const auto until = Clock::now() + patience;
  try {
    const auto is_awaited = [&](int rank) {
      return std::find(lost_.begin(), lost_.end(), rank) == lost_.end();
    };
    while (Clock::now() < until) {
      const auto staying = others_without("left");
      if (std::none_of(staying.begin(), staying.end(), is_awaited)) break;
      std::this_thread::sleep_for(pause);
    }
  } catch (const std::exception&) {
  }
}

milliseconds Meeting::time_left() const {
  const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - opened_);
  return std::max(timeout_ - passed, milliseconds(0));
}

c10::intrusive_ptr<c10d::Store> Meeting::store_of(const std::string& group) const {
  return c10::make_intrusive<c10d::PrefixStore>(group, store_);
}

void Meeting::give_reason(const std::string& group, const std::string& reason) noexcept {
  answers_within(patience, [store = store_of(group), reason, rank = launch_.rank] {
    const auto place = static_cast<int>(store->add("reasons", 1));
    store->set(numbered("reason", place), std::to_string(rank) + " " + reason);
  });
}

void Meeting::answer(const std::string& group) noexcept {
  answers_within(patience, [store = store_of(group), key = numbered("here", launch_.rank)] { store->set(key, "1"); });
}

RollCall Meeting::roll_call(const std::string& group) {
  struct Answers {
    std::mutex mutex;
    RollCall found;
  };
  auto answers = std::make_shared<Answers>();
  const bool store_answers = answers_within(
      patience + pause, [answers, store = store_of(group), rank = launch_.rank, size = launch_.world_size] {
        const auto until = Clock::now() + patience;
        store->set(numbered("here", rank), "1");
        std::vector<int> awaited;
        for (int other = 0; other < size; ++other) {
          if (other != rank) awaited.push_back(other);
        }
        const auto has_answered = [&](int other) { return store->check({numbered("here", other)}); };
        RollCall found;
        while (true) {
          if (store->check({"reason/1"})) {
            const auto said = store->get_to_str("reason/1");
            const auto end_of_rank = said.find(' ');
            found = {{std::stoi(said.substr(0, end_of_rank))}, said.substr(end_of_rank + 1)};
            break;
          }
          std::erase_if(awaited, has_answered);
          if (awaited.empty() || Clock::now() + pause > until) {
            found.missing = awaited;
            break;
          }
          std::this_thread::sleep_for(pause);
        }
        const std::lock_guard lock(answers->mutex);
        answers->found = std::move(found);
      });
  const std::lock_guard lock(answers->mutex);
  if (!store_answers && answers->found.missing.empty()) {
    const bool of_rank_0 = !launch_.host.empty() && !launch_.listened_to && launch_.rank != 0;
    answers->found = {of_rank_0 ? std::vector{0} : std::vector<int>{},
                      message::meeting_point_lost(meeting_point(launch_))};
  }
  lost_ = answers->found.missing;
  return answers->found;
}

void Meeting::fail_to_join(const std::vector<int>& missing, const std::string& cause) const {
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - opened_);
  throw message::ranks_not_joined(launch_.world_size, missing, meeting_point(launch_), waited, cause);
}

std::vector<int> Meeting::others_without(const std::string& key) const {
  std::vector<int> missing;
  for (int rank = 0; rank < launch_.world_size; ++rank) {
    if (rank != launch_.rank && !store_->check({numbered(key, rank)})) missing.push_back(rank);
  }
  return missing;
}

}  // namespace lockstep
