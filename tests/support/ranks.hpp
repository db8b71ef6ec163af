// The ranks of a run as child processes of a test.
//
//   const auto ranks = run_ranks(2, [](Rank& rank) {
//     Accelerator accelerator(rank.options());
//     ...
//     return std::string("what this rank found");
//   });
//   CATCH_REQUIRE(ranks.texts() == std::vector<std::string>{"...", "..."});
//
// The body must not use Catch2. Its files belong in rank.directory, which all ranks share and which is
// removed at the end.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/lockstep.hpp"
#include "support/temporary_directory.hpp"

namespace lockstep::test {

/// What a rank's body gets.
class Rank {
 public:
  Rank(int number, int world_size, std::filesystem::path directory, int port, int channel)
      : number(number),
        world_size(world_size),
        directory(std::move(directory)),
        port(port),
        channel_(channel) {}

  /// On the CPU, in double, with a short timeout; change what matters.
  [[nodiscard]] AcceleratorOptions options() const {
    AcceleratorOptions options;
    options.precision = Precision::fp64;
    options.device = at::kCPU;
    options.launch = launch();
    options.rank_timeout = std::chrono::seconds(20);
    return options;
  }
  [[nodiscard]] LaunchOptions launch() const {
    LaunchOptions launch;
    launch.rank = number;
    launch.world_size = world_size;
    launch.local_rank = number;
    launch.meeting_point =
        port == 0 ? "file://" + (directory / "meeting").string() : "127.0.0.1:" + std::to_string(port);
    return launch;
  }

  /// What this rank is about to do: said when it does not end in time.
  void says(const std::string& text) const { send('S', text); }

  void send(char kind, const std::string& text) const {
    std::string message(1, kind);
    const auto size = static_cast<std::uint32_t>(text.size());
    message.append(reinterpret_cast<const char*>(&size), sizeof size);
    message += text;
    for (std::size_t sent = 0; sent < message.size();) {
      const auto count = ::write(channel_, message.data() + sent, message.size() - sent);
      if (count <= 0) return;
      sent += static_cast<std::size_t>(count);
    }
  }

  const int number;
  const int world_size;
  const std::filesystem::path directory;
  const int port;  ///< where rank 0 serves the store; 0: they meet at a file

 private:
  int channel_;
};

/// How a rank ended.
struct RankEnd {
  bool returned = false;  ///< its body did, with `text`
  std::string text;       ///< what it returned, else the error's text
  std::string error_id;   ///< of a lockstep::Error
  std::string said;       ///< the last of what it said
  std::string output;     ///< on standard error
  int status = 0;         ///< as waitpid() says it
  bool frozen = false;    ///< it was stopped and never continued, and killed when the others had ended
  std::chrono::milliseconds after{0};  ///< since the start
};

class Ranks {
 public:
  explicit Ranks(std::vector<RankEnd> ends) : ends_(std::move(ends)) {}

  [[nodiscard]] const RankEnd& operator[](std::size_t rank) const { return ends_.at(rank); }
  [[nodiscard]] std::size_t size() const { return ends_.size(); }
  [[nodiscard]] bool all_returned() const {
    for (const auto& end : ends_) {
      if (!end.returned) return false;
    }
    return true;
  }
  /// What the ranks returned. Throws, with how all of them ended, unless every one of them returned.
  [[nodiscard]] std::vector<std::string> texts() const {
    if (!all_returned()) throw std::runtime_error("not all ranks returned:" + report());
    std::vector<std::string> texts;
    for (const auto& end : ends_) texts.push_back(end.text);
    return texts;
  }
  /// What every rank returned, when they returned the same; throws else.
  [[nodiscard]] std::string same_text() const {
    const auto all = texts();
    for (const auto& text : all) {
      if (text != all.front()) throw std::runtime_error("the ranks returned different texts:" + report());
    }
    return all.front();
  }
  [[nodiscard]] std::vector<std::string> error_ids() const {
    std::vector<std::string> ids;
    for (const auto& end : ends_) ids.push_back(end.error_id);
    return ids;
  }
  [[nodiscard]] std::string report() const {
    std::ostringstream text;
    for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
      const auto& end = ends_[rank];
      text << "\n  rank " << rank;
      if (end.returned) {
        text << " returned: " << end.text;
      } else if (!end.text.empty()) {
        text << " threw: " << end.text;
      } else if (WIFSIGNALED(end.status)) {
        text << (end.frozen ? " was frozen" : " was ended by signal ")
             << (end.frozen ? "" : ::strsignal(WTERMSIG(end.status)));
      } else {
        text << " left with exit status " << WEXITSTATUS(end.status);
      }
      if (!end.said.empty()) text << "\n    last said: " << end.said;
      if (!end.output.empty()) text << "\n    wrote: " << end.output;
    }
    return text.str();
  }

 private:
  std::vector<RankEnd> ends_;
};

struct RunRanksOptions {
  std::chrono::seconds deadline{60};
  bool over_tcp = false;  ///< rank 0 serves the store; else the ranks meet at a file
};

/// A port that nobody listens at.
inline int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket, plain, size) != 0 || ::getsockname(socket, plain, &size) != 0) {
    throw std::runtime_error("no free port");
  }
  ::close(socket);
  return ntohs(address.sin_port);
}

/// Runs `body` in `count` child processes and waits for all of them. Throws, with what every rank said last,
/// when they have not ended at the deadline. A rank that stops itself (SIGSTOP) is killed once the others
/// have ended.
inline Ranks run_ranks(int count, const std::function<std::string(Rank&)>& body,
                       RunRanksOptions options = {}) {
  using Clock = std::chrono::steady_clock;
  struct Child {
    pid_t pid = -1;
    int channel = -1;
    std::string received;
    bool ended = false;
    bool stopped = false;
    RankEnd end;
  };
  const TemporaryDirectory directory;
  std::vector<Child> children(static_cast<std::size_t>(count));
  const int port = options.over_tcp ? free_port() : 0;
  const auto start = Clock::now();
  const auto output_of = [&](int rank) { return directory.path() / ("stderr-" + std::to_string(rank)); };

  // What waits in a buffer would be written by every child too.
  std::cout << std::flush;
  std::fflush(nullptr);
  for (int number = 0; number < count; ++number) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) throw std::runtime_error("cannot fork");
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(1);
      const int output = ::open(output_of(number).c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
      ::dup2(output, STDERR_FILENO);
      Rank rank(number, count, directory.path(), port, ends[1]);
      int code = 1;
      try {
        const auto text = body(rank);
        rank.send('R', text);
        code = 0;
      } catch (const Error& error) {
        rank.send('I', error.id());
        rank.send('E', error.what());
      } catch (const std::exception& error) {
        rank.send('E', error.what());
      } catch (...) {
        rank.send('E', "something that is no std::exception");
      }
      ::_exit(code);
    }
    ::close(ends[1]);
    auto& child = children[static_cast<std::size_t>(number)];
    child.pid = pid;
    child.channel = ends[0];
  }

  const auto receive = [](Child& child) {
    char bytes[4096];
    const auto size = ::read(child.channel, bytes, sizeof bytes);
    if (size <= 0) return false;
    child.received.append(bytes, static_cast<std::size_t>(size));
    while (true) {
      std::uint32_t length = 0;
      if (child.received.size() < 1 + sizeof length) return true;
      std::memcpy(&length, child.received.data() + 1, sizeof length);
      if (child.received.size() < 1 + sizeof length + length) return true;
      const char kind = child.received[0];
      const auto text = child.received.substr(1 + sizeof length, length);
      child.received.erase(0, 1 + sizeof length + length);
      if (kind == 'S') child.end.said = text;
      if (kind == 'I') child.end.error_id = text;
      if (kind == 'E') child.end.text = text;
      if (kind == 'R') child.end.text = text, child.end.returned = true;
    }
  };

  bool in_time = true;
  std::size_t running = children.size();
  while (running > 0) {
    std::vector<pollfd> channels;
    for (const auto& child : children) channels.push_back({child.ended ? -1 : child.channel, POLLIN, 0});
    ::poll(channels.data(), channels.size(), 2);
    std::size_t stopped = 0;
    for (std::size_t i = 0; i < children.size(); ++i) {
      auto& child = children[i];
      if (child.ended) continue;
      if (channels[i].revents != 0) (void)receive(child);
      int status = 0;
      if (::waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.pid) {
        child.stopped = WIFSTOPPED(status);
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
          while (receive(child)) {
          }
          child.ended = true;
          child.end.status = status;
          child.end.after = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start);
          --running;
        }
      }
      stopped += !child.ended && child.stopped;
    }
    const bool late = Clock::now() - start > options.deadline;
    if (running > 0 && (late || stopped == running)) {
      for (auto& child : children) {
        if (child.ended) continue;
        child.end.frozen = child.stopped;
        in_time = in_time && !late;
        ::kill(child.pid, SIGKILL);
      }
    }
  }

  std::vector<RankEnd> ends;
  for (int number = 0; number < count; ++number) {
    auto& child = children[static_cast<std::size_t>(number)];
    ::close(child.channel);
    std::ifstream output(output_of(number));
    std::ostringstream text;
    text << output.rdbuf();
    child.end.output = text.str();
    ends.push_back(std::move(child.end));
  }
  Ranks ranks(std::move(ends));
  if (!in_time) throw std::runtime_error("the ranks did not end in time:" + ranks.report());
  return ranks;
}

}  // namespace lockstep::test
