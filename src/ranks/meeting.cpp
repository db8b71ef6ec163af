#include "ranks/meeting.hpp"

#include <c10/util/Exception.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "base/rank_messages.hpp"
#include "lockstep/base/version.hpp"
#include "ranks/network_threads.hpp"
#include "ranks/detached.hpp"
#include "ranks/local_process.hpp"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

/// Of a rank that needs others which may be gone.
constexpr milliseconds patience{1000};
constexpr milliseconds pause{5};
/// What is kept of it for a meeting point that answers late, since its machine is busy.
constexpr milliseconds leeway{250};

/// Instead of the version of a rank that another one has stopped waiting for.
const std::string absent = "absent";

std::string numbered(const std::string& key, int rank) { return key + "/" + std::to_string(rank); }

std::string place_of(const Launch& launch) {
  return launch.host.empty() ? "file://" + launch.file : launch.host + ":" + std::to_string(launch.port);
}

bool serves(const Launch& launch) { return !launch.host.empty() && !launch.listened_to && launch.rank == 0; }

c10::intrusive_ptr<c10d::Store> file_store(const Launch& launch) {
  // The store itself would wait for the folder to appear.
  const auto folder = std::filesystem::absolute(launch.file).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw std::system_error(std::make_error_code(std::errc::no_such_file_or_directory), folder.string());
  }
  auto store = c10::make_intrusive<c10d::FileStore>(launch.file, -1);
  // Its destructor writes to the file, and ends the process where the disk is full. So it never runs.
  auto kept = store;
  (void)kept.release();
  return store;
}

c10::intrusive_ptr<c10d::Store> tcp_store(const Launch& launch, milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(launch.port);
  options.isServer = serves(launch);
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

/// Of those that do not answer a roll call. A rank that computes has no time to, and one that has come to its
/// end in order needs none; they are named only when there is nobody else.
std::vector<int> who_is_missing(c10d::Store& store, const std::vector<int>& silent) {
  std::vector<int> staying, not_running;
  for (const int rank : silent) {
    if (store.check({numbered("left", rank)})) continue;
    staying.push_back(rank);
    if (look_for(store.get_to_str(numbered("process", rank))) != Seen::running) not_running.push_back(rank);
  }
  return !not_running.empty() ? not_running : !staying.empty() ? staying : silent;
}

bool will_answer(c10d::Store& store, int rank) {
  return look_for(store.get_to_str(numbered("process", rank))) != Seen::ended_or_stopped &&
         !store.check({numbered("left", rank)});
}

/// How often this process has come to this place: what a launcher keeps there outlives a run, and a program may have
/// several in a row.
int meetings_before(const Launch& launch) {
  static std::mutex mutex;
  static std::map<std::string, int> meetings;
  const std::lock_guard lock(mutex);
  return meetings[place_of(launch)]++;
}

}  // namespace

std::string cause_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  // Gloo puts the place in its own sources before the cause, and general advice behind it.
  const auto place = text.find(".cc:");
  const auto end_of_place = text.find("] ", place == std::string::npos ? text.size() : place);
  const auto begin = end_of_place == std::string::npos ? 0 : end_of_place + 2;
  return text.substr(begin, std::min(text.find('\n'), text.find(". This is typically")) - begin);
}

Meeting::Meeting(const Launch& launch, milliseconds timeout) : launch_(launch), timeout_(timeout) {
  try {
    open();
    if (store_->add(numbered("came", launch_.rank), 1) != 1) {
      throw message::rank_taken(launch_.rank, place_of(launch_));
    }
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail_to_join(server(), cause_of(error));
  }
  try {
    meet();
  } catch (const Error&) {
    leave();
    throw;
  } catch (const std::exception& error) {
    leave();
    fail_to_join(server(), cause_of(error));
  }
}

void Meeting::open() {
  const NetworkThreads network_threads;
  auto store = launch_.host.empty() ? file_store(launch_) : tcp_store(launch_, timeout_);
  const auto prefix = "lockstep/" + std::to_string(launch_.restart) + "/" + std::to_string(meetings_before(launch_));
  store_ = c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
  store_->setTimeout(timeout_);
}

void Meeting::meet() {
  const std::string version = std::string("lockstep ") + LOCKSTEP_VERSION + " with torch " + TORCH_VERSION;
  store_->set(numbered("process", launch_.rank), name_of_this_process());
  store_->set(numbered("version", launch_.rank), version);

  std::vector<std::string> keys;
  for (int rank = 0; rank < launch_.world_size; ++rank) keys.push_back(numbered("version", rank));
  std::string cause;
  try {
    store_->wait(keys, std::max(time_left(), milliseconds(1)));
  } catch (const std::exception& error) {
    // Those that came wait for the same ranks: this ends it for them too.
    for (const int rank : without("version")) store_->set(numbered("version", rank), absent);
    cause = cause_of(error);
  }
  std::vector<int> missing;
  std::vector<std::string> differences;
  for (int rank = 0; rank < launch_.world_size; ++rank) {
    const auto theirs = store_->get_to_str(keys[static_cast<std::size_t>(rank)]);
    if (theirs == absent) {
      missing.push_back(rank);
    } else if (theirs != version) {
      differences.push_back(message::difference_of_version(rank, theirs, version));
    }
  }
  lost_ = missing;
  if (!missing.empty()) fail_to_join(missing, cause.empty() ? message::others_gave_up() : cause);
  if (!differences.empty()) throw message::ranks_differ(differences);
}

Meeting::~Meeting() { leave(); }

void Meeting::leave() {
  (void)Detached([store = store_, launch = launch_] {
    store->set(numbered("left", launch.rank), "1");
    if (launch.host.empty() && store->add("left", 1) == launch.world_size)
      std::filesystem::remove(launch.file);
  }).within(patience);
  if (!serves(launch_)) return;
  const auto until = Clock::now() + patience;
  const auto is_lost = [this](int rank) {
    return std::find(lost_.begin(), lost_.end(), rank) != lost_.end();
  };
  try {
    while (Clock::now() < until) {
      const auto staying = without("left");
      if (std::all_of(staying.begin(), staying.end(), is_lost)) return;
      std::this_thread::sleep_for(pause);
    }
  } catch (const std::exception&) {
    // There is nobody left to wait for once its own store fails.
  }
}

milliseconds Meeting::time_left() const {
  const auto passed = std::chrono::duration_cast<milliseconds>(Clock::now() - opened_);
  return std::max(timeout_ - passed, milliseconds(0));
}

c10::intrusive_ptr<c10d::Store> Meeting::store_of(const std::string& group) const {
  return c10::make_intrusive<c10d::PrefixStore>(group, store_);
}

void Meeting::give_reason(const std::string& group, const std::string& reason) {
  const auto leave_word = [store = store_of(group), reason, rank = launch_.rank] {
    const auto place = static_cast<int>(store->add("reasons", 1));
    store->set(numbered("reason", place), std::to_string(rank) + " " + reason);
  };
  (void)Detached(leave_word).within(patience);
}

RollCall Meeting::roll_call(const std::string& group) {
  auto result = std::make_shared<RollCall>();
  const auto call = [result, run = store_, store = store_of(group), rank = launch_.rank,
                     size = launch_.world_size] {
    const auto until = Clock::now() + patience - leeway;
    store->set(numbered("here", rank), "1");
    std::vector<int> silent;
    for (int other = 0; other < size; ++other) {
      if (other != rank) silent.push_back(other);
    }
    const auto answers = [&](int other) { return store->check({numbered("here", other)}); };
    while (!store->check({"reason/1"})) {
      std::erase_if(silent, answers);
      const bool awaited =
          std::any_of(silent.begin(), silent.end(), [&](int other) { return will_answer(*run, other); });
      if (!awaited || Clock::now() + pause > until) {
        result->missing = who_is_missing(*run, silent);
        return;
      }
      std::this_thread::sleep_for(pause);
    }
    const auto said = store->get_to_str("reason/1");
    const auto end_of_rank = said.find(' ');
    *result = {{std::stoi(said.substr(0, end_of_rank))}, said.substr(end_of_rank + 1)};
  };
  // `result` is only looked at when nobody writes to it any more.
  const bool answered = Detached(call).within(patience) == Detached::Outcome::returned;
  const auto found = answered ? *result : RollCall{server(), message::meeting_point_lost(place_of(launch_))};
  lost_ = found.missing;
  return found;
}

void Meeting::fail_to_join(const std::vector<int>& missing, const std::string& cause) const {
  const auto waited = std::chrono::duration_cast<milliseconds>(Clock::now() - opened_);
  throw message::ranks_not_joined(launch_.world_size, missing, place_of(launch_), waited, cause);
}

std::vector<int> Meeting::without(const std::string& key) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < launch_.world_size; ++rank) {
    if (rank != launch_.rank && !store_->check({numbered(key, rank)})) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> Meeting::server() const {
  const bool is_rank_0 = !launch_.host.empty() && !launch_.listened_to && launch_.rank != 0;
  return is_rank_0 ? std::vector{0} : std::vector<int>{};
}

}  // namespace lockstep
