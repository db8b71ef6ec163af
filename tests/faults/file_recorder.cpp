#include "faults/file_recorder.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

namespace fs = std::filesystem;

namespace lockstep::test {
namespace {

class Live {
 public:
  explicit Live(const fs::path& folder) : folder_(fs::canonical(folder)) { add(Node::Kind::directory); }

  const Recording& recording() const { return recording_; }

  /// A place in the recorded folder: the entry `name` of `directory`.
  struct Place {
    int directory;
    std::string name;
  };

  std::optional<Place> place(int base, const char* path) const {
    fs::path whole = path;
    if (whole.is_relative()) whole = directory_of(base) / whole;
    const fs::path inside = whole.lexically_normal().lexically_relative(folder_);
    if (inside.empty() || inside == "." || *inside.begin() == "..") return std::nullopt;
    Place place{0, ""};
    for (const auto& part : inside) {
      if (!place.name.empty()) {
        place.directory = node(place);
        if (place.directory == no_node) return std::nullopt;
      }
      place.name = part;
    }
    return place;
  }

  int node(const Place& place) const {
    const auto& entries = entries_[static_cast<std::size_t>(place.directory)];
    const auto found = entries.find(place.name);
    return found == entries.end() ? no_node : found->second;
  }

  int node_of(int descriptor) const {
    const auto path = path_of(descriptor);
    if (path == folder_) return 0;
    const auto found = place(AT_FDCWD, path.c_str());
    return found ? node(*found) : no_node;
  }

  void create(const Place& place, Node::Kind kind, const std::string& target = "") {
    change(place.directory, {{place.name, add(kind, target)}}, "create " + place.name);
  }

  void remove(const Place& place) {
    change(place.directory, {{place.name, no_node}}, "remove " + place.name);
  }

  void rename(const Place& from, const Place& to) {
    if (from.directory != to.directory) throw std::logic_error("a rename into another directory");
    change(from.directory, {{to.name, node(from)}, {from.name, no_node}},
           "rename " + from.name + " " + to.name);
  }

  void write(int node, std::uint64_t offset, const void* data, std::size_t size) {
    recording_.operations.push_back({.kind = Operation::Kind::write,
                                     .node = node,
                                     .offset = offset,
                                     .bytes = {static_cast<const char*>(data), size},
                                     .text = "write " + std::to_string(size)});
  }

  void sync(int node, const std::string& path) {
    recording_.operations.push_back({.kind = Operation::Kind::sync, .node = node, .text = "sync " + path});
  }

  static fs::path path_of(int descriptor) {
    char path[PATH_MAX];
    const auto size = ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof path);
    return size < 0 ? fs::path() : fs::path(path, path + size);
  }

 private:
  static fs::path directory_of(int base) { return base == AT_FDCWD ? fs::current_path() : path_of(base); }

  int add(Node::Kind kind, const std::string& target = "") {
    recording_.nodes.push_back({kind, target});
    entries_.emplace_back();
    return static_cast<int>(entries_.size()) - 1;
  }

  void change(int directory, std::vector<std::pair<std::string, int>> changes, std::string text) {
    auto& entries = entries_[static_cast<std::size_t>(directory)];
    for (const auto& [name, node] : changes) {
      if (node == no_node) {
        entries.erase(name);
      } else {
        entries[name] = node;
      }
    }
    recording_.operations.push_back({.kind = Operation::Kind::entries,
                                     .node = directory,
                                     .entries = std::move(changes),
                                     .text = std::move(text)});
  }

  fs::path folder_;
  Recording recording_;
  std::vector<std::map<std::string, int>> entries_;  // as the process sees them, by node
};

// A call and its record are one step, so that the order of records is that of the calls.
std::mutex mutex;
std::unique_ptr<Live> live;
std::atomic<bool> is_recording{false};
std::atomic<std::size_t> largest_write{SIZE_MAX};

template <class Function>
Function* original(const char* name) {
  void* const found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) ::abort();
  return reinterpret_cast<Function*>(found);
}

/// Makes the call; where it succeeds, `record` notes it. `before` finds what is known only before it.
template <class Call, class Before, class Record>
auto recorded(Call call, Before before, Record record) {
  if (!is_recording) return call();
  const std::lock_guard lock(mutex);
  if (!live) return call();
  const auto known = before(*live);
  const auto result = call();
  const int error = errno;
  if (result >= 0) record(*live, known, result);
  errno = error;
  return result;
}

std::mutex before_opening_mutex;
std::string awaited_path_end;
std::function<void()> before_opening;  // empty: nothing is awaited, or it has happened

void call_before_opening(const std::string& path) {
  std::function<void()> call;
  {
    const std::lock_guard lock(before_opening_mutex);
    if (before_opening && path.ends_with(awaited_path_end)) call = std::exchange(before_opening, nullptr);
  }
  if (call) call();
}

int recorded_open(int base, const char* path, int flags, mode_t mode) {
  call_before_opening(path);
  static const auto call = original<int(int, const char*, int, ...)>("openat");
  return recorded([&] { return call(base, path, flags, mode); },
                  [&](const Live& known) { return known.place(base, path); },
                  [&](Live& known, const auto& place, int) {
                    if (place && (flags & O_CREAT) && known.node(*place) == no_node) {
                      known.create(*place, Node::Kind::file);
                    }
                  });
}

template <class Call>
int recorded_removal(int base, const char* path, Call call) {
  return recorded(
      call, [&](const Live& known) { return known.place(base, path); },
      [](Live& known, const auto& place, int) {
        if (place) known.remove(*place);
      });
}

template <class Call>
int recorded_sync(int descriptor, Call call) {
  return recorded(
      call, [&](const Live& known) { return known.node_of(descriptor); },
      [&](Live& known, int node, int) {
        if (node != no_node) known.sync(node, Live::path_of(descriptor).filename());
      });
}

template <class Call>
ssize_t recorded_write(int descriptor, const void* data, Call call, std::optional<std::uint64_t> offset) {
  return recorded(
      call, [&](const Live& known) { return known.node_of(descriptor); },
      [&](Live& known, int node, ssize_t size) {
        if (node == no_node || size == 0) return;
        const auto begin =
            offset ? *offset : static_cast<std::uint64_t>(::lseek(descriptor, 0, SEEK_CUR) - size);
        known.write(node, begin, data, static_cast<std::size_t>(size));
      });
}

mode_t mode_in(int flags, va_list arguments) { return (flags & O_CREAT) ? va_arg(arguments, mode_t) : 0; }

}  // namespace

FileRecorder::FileRecorder(const fs::path& folder) {
  if (!fs::is_empty(folder)) throw std::logic_error("the folder is not empty at first");
  const std::lock_guard lock(mutex);
  live = std::make_unique<Live>(folder);
  is_recording = true;
}

FileRecorder::~FileRecorder() {
  is_recording = false;
  const std::lock_guard lock(mutex);
  live.reset();
}

std::size_t FileRecorder::size() const {
  const std::lock_guard lock(mutex);
  return live->recording().operations.size();
}

const Recording& FileRecorder::recording() const { return live->recording(); }

ShortWrites::ShortWrites(std::size_t bytes) { largest_write = bytes; }

ShortWrites::~ShortWrites() { largest_write = SIZE_MAX; }

BeforeOpening::BeforeOpening(std::string path_end, std::function<void()> call) {
  const std::lock_guard lock(before_opening_mutex);
  awaited_path_end = std::move(path_end);
  before_opening = std::move(call);
}

BeforeOpening::~BeforeOpening() {
  const std::lock_guard lock(before_opening_mutex);
  before_opening = nullptr;
}

bool BeforeOpening::happened() const {
  const std::lock_guard lock(before_opening_mutex);
  return !before_opening;
}

}  // namespace lockstep::test

using namespace lockstep::test;

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = mode_in(flags, arguments);
  va_end(arguments);
  return recorded_open(AT_FDCWD, path, flags, mode);
}

int openat(int base, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = mode_in(flags, arguments);
  va_end(arguments);
  return recorded_open(base, path, flags, mode);
}

ssize_t write(int descriptor, const void* data, size_t size) {
  static const auto call = original<decltype(::write)>("write");
  size = std::min(size, largest_write.load());
  return recorded_write(
      descriptor, data, [&] { return call(descriptor, data, size); }, std::nullopt);
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  static const auto call = original<decltype(::pwrite)>("pwrite");
  size = std::min(size, largest_write.load());
  return recorded_write(
      descriptor, data, [&] { return call(descriptor, data, size, offset); }, offset);
}

int fsync(int descriptor) {
  static const auto call = original<decltype(::fsync)>("fsync");
  return recorded_sync(descriptor, [&] { return call(descriptor); });
}

int fdatasync(int descriptor) {
  static const auto call = original<decltype(::fdatasync)>("fdatasync");
  return recorded_sync(descriptor, [&] { return call(descriptor); });
}

int rename(const char* from, const char* to) noexcept {
  static const auto call = original<int(const char*, const char*)>("rename");
  using Places = std::pair<std::optional<Live::Place>, std::optional<Live::Place>>;
  return recorded(
      [&] { return call(from, to); },
      [&](const Live& known) { return Places(known.place(AT_FDCWD, from), known.place(AT_FDCWD, to)); },
      [](Live& known, const Places& places, int) {
        if (places.first && places.second) known.rename(*places.first, *places.second);
      });
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto call = original<int(const char*, mode_t)>("mkdir");
  return recorded([&] { return call(path, mode); },
                  [&](const Live& known) { return known.place(AT_FDCWD, path); },
                  [](Live& known, const auto& place, int) {
                    if (place) known.create(*place, Node::Kind::directory);
                  });
}

int symlink(const char* target, const char* path) noexcept {
  static const auto call = original<int(const char*, const char*)>("symlink");
  return recorded([&] { return call(target, path); },
                  [&](const Live& known) { return known.place(AT_FDCWD, path); },
                  [&](Live& known, const auto& place, int) {
                    if (place) known.create(*place, Node::Kind::link, target);
                  });
}

int unlink(const char* path) noexcept {
  static const auto call = original<int(const char*)>("unlink");
  return recorded_removal(AT_FDCWD, path, [&] { return call(path); });
}

int unlinkat(int base, const char* path, int flags) noexcept {
  static const auto call = original<int(int, const char*, int)>("unlinkat");
  return recorded_removal(base, path, [&] { return call(base, path, flags); });
}

int rmdir(const char* path) noexcept {
  static const auto call = original<int(const char*)>("rmdir");
  return recorded_removal(AT_FDCWD, path, [&] { return call(path); });
}

int remove(const char* path) noexcept {
  static const auto call = original<int(const char*)>("remove");
  return recorded_removal(AT_FDCWD, path, [&] { return call(path); });
}

}  // extern "C"
