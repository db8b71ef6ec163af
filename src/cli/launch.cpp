#include "cli/commands.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/rank_process.hpp"

namespace lockstep::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int exit_stopped = 75;
constexpr int exit_cannot_run = 126;
constexpr int exit_not_found = 127;

struct Command {
  int ranks = 1;
  int restarts = 0;
  int port = 0;  ///< 0: a free one for each start
  double grace = 10;
  std::vector<std::string> program;
};

template <class... T>
void say(fmt::format_string<T...> text, T&&... values) {
  write_whole(STDERR_FILENO, "lockstep: " + fmt::format(text, std::forward<T>(values)...) + '\n');
}

/// Another program may take it before rank 0 does, but the system gives a number again only after many
/// others.
int free_port() {
  const FileDescriptor socket_fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(socket_fd.get(), any, length) != 0 || getsockname(socket_fd.get(), any, &length) != 0) {
    throw std::system_error(errno, std::generic_category(), "no free port");
  }
  return ntohs(address.sin_port);
}

int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

/// This process's, but for what says which rank a process is, which may stem from a launcher around this one.
std::vector<std::string> environment_without_ranks() {
  constexpr std::string_view replaced[] = {"RANK",
                                           "WORLD_SIZE",
                                           "LOCAL_RANK",
                                           "LOCAL_WORLD_SIZE",
                                           "GROUP_RANK",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "GROUP_WORLD_SIZE",
                                           "TORCHELASTIC_RUN_ID",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "TORCHELASTIC_USE_AGENT_STORE"};
  std::vector<std::string> kept;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view variable = *entry;
    if (std::ranges::count(replaced, variable.substr(0, variable.find('='))) == 0)
      kept.emplace_back(variable);
  }
  return kept;
}

std::vector<std::string> environment_of(int rank, const Command& command, int port, int start) {
  auto environment = environment_without_ranks();
  const auto set = [&](const char* name, const auto& value) {
    environment.push_back(fmt::format("{}={}", name, value));
  };
  set("RANK", rank);
  set("WORLD_SIZE", command.ranks);
  set("LOCAL_RANK", rank);
  set("LOCAL_WORLD_SIZE", command.ranks);
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", port);
  set("TORCHELASTIC_RESTART_COUNT", start);
  if (!std::getenv("OMP_NUM_THREADS")) set("OMP_NUM_THREADS", std::max(1, usable_cores() / command.ranks));
  return environment;
}

/// Signals as something to read, so that everything happens in one thread.
class Signals {
 public:
  Signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    fd_ = FileDescriptor(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    std::signal(SIGPIPE, SIG_IGN);
  }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] std::optional<int> next() const {
    signalfd_siginfo info{};
    if (read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
    return static_cast<int>(info.ssi_signo);
  }

 private:
  FileDescriptor fd_;
};

struct Outcome {
  int code = 0;          ///< of the first rank that failed, else 75 where one ended with it
  bool stopped = false;  ///< a signal asked for the end
};

/// One start of all ranks.
class Start {
 public:
  Start(const Command& command, const Signals& signals, int number) : command_(command), signals_(signals) {
    const int port = command.port != 0 ? command.port : free_port();
    for (int rank = 0; rank < command.ranks; ++rank) {
      ranks_.push_back(
          std::make_unique<RankProcess>(rank, command.program, environment_of(rank, command, port, number)));
    }
  }

  Outcome run() {
    while (any_running()) {
      wait(time_to_kill_ ? *time_to_kill_ - Clock::now() : std::chrono::hours(24));
      while (const auto signal = signals_.next()) {
        if (*signal != SIGCHLD) forward(*signal);
      }
      for (auto& rank : ranks_) {
        if (rank->has_just_ended()) note(rank->rank(), *rank->ending());
      }
      if (time_to_kill_ && Clock::now() >= *time_to_kill_) {
        for (auto& rank : ranks_) rank->kill_group();
      }
    }
    // What is left of the groups would keep the pipes open, but not what has made itself independent.
    for (auto& rank : ranks_) rank->kill_group();
    while (wait(std::chrono::milliseconds(200))) continue;
    return outcome_;
  }

 private:
  [[nodiscard]] bool any_running() const {
    return std::ranges::any_of(ranks_, [](const auto& rank) { return !rank->ending(); });
  }

  /// Hands on what was printed, for as long as there is something or until a signal. False if nothing came.
  bool wait(Clock::duration at_most) {
    std::vector<pollfd> ready = {{signals_.fd(), POLLIN, 0}};
    std::vector<RankProcess::Stream*> streams;
    for (auto& rank : ranks_) {
      for (auto& stream : rank->streams()) {
        if (!stream.from.is_open()) continue;
        ready.push_back({stream.from.get(), POLLIN, 0});
        streams.push_back(&stream);
      }
    }
    if (streams.empty() && !any_running()) return false;
    const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(at_most).count();
    if (poll(ready.data(), ready.size(), static_cast<int>(std::max<std::int64_t>(0, milliseconds))) <= 0)
      return false;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (ready[i + 1].revents != 0) pass_on(*streams[i]);
    }
    return true;
  }

  void send(int signal) {
    for (auto& rank : ranks_) rank->send(signal);
  }

  void forward(int signal) {
    // Asks for a save alone.
    if (signal == SIGUSR2) return send(signal);
    outcome_.stopped = true;
    asked_to_end_ |= signal != SIGUSR1;
    send(signal);
  }

  void note(int rank, const Ending& ending) {
    if (ending.code == 0 || failed_) return;
    outcome_.code = ending.code;
    if (ending.code == exit_stopped) return;
    failed_ = true;
    const auto what = ending.signal == 0 ? fmt::format("ended with code {}", ending.code)
                                         : fmt::format("was killed by signal {} ({})", ending.signal,
                                                       strsignal(ending.signal));
    say("rank {} of {} {}{}", rank, command_.ranks, what, any_running() ? "; the others are stopped" : "");
    // A second request would end it at once, in the middle of a save.
    if (!asked_to_end_) send(SIGTERM);
    time_to_kill_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                       std::chrono::duration<double>(command_.grace));
  }

  const Command& command_;
  const Signals& signals_;
  std::vector<std::unique_ptr<RankProcess>> ranks_;
  Outcome outcome_;
  bool failed_ = false;
  bool asked_to_end_ = false;
  std::optional<Clock::time_point> time_to_kill_;
};

bool worth_a_restart(int code) {
  return code != 0 && code != exit_stopped && code != exit_trouble && code != exit_cannot_run &&
         code != exit_not_found;
}

int launch(const Command& command) {
  const Signals signals;
  try {
    for (int number = 0;; ++number) {
      const Outcome outcome = Start(command, signals, number).run();
      if (number == command.restarts || outcome.stopped || !worth_a_restart(outcome.code)) {
        if (outcome.code == exit_stopped) say("stopped on request; the same command goes on");
        return outcome.code;
      }
      say("starting all ranks again ({} of {})", number + 1, command.restarts);
    }
  } catch (const std::system_error& error) {
    say("cannot start the ranks: {}", error.what());
    return error.code() == std::errc::no_such_file_or_directory ? exit_not_found : exit_cannot_run;
  }
}

}  // namespace

void add_launch(CLI::App& app, int& exit_code) {
  auto command = std::make_shared<Command>();
  auto* const launch_app = app.add_subcommand("launch", "Starts the ranks of a run on this machine");
  launch_app->add_option("-n,--ranks", command->ranks, "Processes, each a rank")
      ->required()
      ->check(CLI::Range(1, 4096));
  launch_app
      ->add_option("--restarts", command->restarts, "Times that all are started again after one has failed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  launch_app->add_option("--port", command->port, "Where the ranks meet; by default a free one")
      ->check(CLI::Range(1, 65535));
  launch_app
      ->add_option("--grace", command->grace,
                   "Seconds from SIGTERM to SIGKILL for those left when one has failed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  launch_app->add_option("program", command->program, "The program and its arguments")->required();
  launch_app->footer(
      "Each line that a rank prints gets \"[rank] \" in front. SIGINT, SIGTERM, SIGUSR1\n"
      "and SIGUSR2 go to all ranks. The exit code is that of the first rank that\n"
      "failed, or 75 if they were stopped and the same command goes on. Neither 75 nor\n"
      "2, a wrong command line, is worth a restart.\n\n"
      "What stands before -- is for launch, what stands behind it for the program.\n\n"
      "Examples:\n"
      "  lockstep launch -n 2 -- ./my_program --epochs 4\n"
      "  lockstep launch -n 4 --restarts 3 -- ./my_program");
  launch_app->callback([command, &exit_code] { exit_code = launch(*command); });
}

}  // namespace lockstep::cli
