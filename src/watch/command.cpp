#include "watch/command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "base/posix_file.hpp"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// -1 if it cannot be run.
pid_t spawn(std::vector<std::string> arguments, std::vector<std::string> environment, int output) {
  for (char** setting = environ; *setting != nullptr; ++setting) environment.emplace_back(*setting);
  const auto argv = pointers(arguments);
  const auto envp = pointers(environment);

  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, output, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // A session of its own: without a terminal, and a group of processes that can be killed as one.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  pid_t child = -1;
  if (posix_spawnp(&child, argv[0], &files, &attributes, argv.data(), envp.data()) != 0) child = -1;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return child;
}

/// Whether the end of the output came within the limits.
bool read_all(int file, std::string& output, std::size_t most, Clock::time_point deadline) {
  std::array<char, 65536> piece;
  while (output.size() <= most) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd readable = {.fd = file, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&readable, 1, static_cast<int>(std::max<decltype(left)>(left, 0)));
    if (ready == 0) return false;
    const auto count = ready < 0 ? -1 : ::read(file, piece.data(), piece.size());
    if (count == 0) return true;
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) output.append(piece.data(), static_cast<std::size_t>(count));
  }
  return false;
}

bool exits_well(pid_t child, Clock::time_point deadline) {
  int status = 0;
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    // ECHILD: the application has children reaped by the system, and there is no status to be had.
    if (ended < 0 && errno != EINTR) return false;
    if (Clock::now() >= deadline) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(-child, SIGKILL);
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return false;
}

}  // namespace

std::optional<std::string> captured_output(const std::vector<std::string>& arguments,
                                           const std::vector<std::string>& environment,
                                           const CommandLimits& limits) {
  const auto deadline = Clock::now() + limits.time;
  std::array<int, 2> ends = {-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return {};
  const FileDescriptor read_end(ends[0]);
  pid_t child = -1;
  {
    const FileDescriptor write_end(ends[1]);
    child = spawn(arguments, environment, write_end.get());
  }
  if (child < 0) return {};
  std::string output;
  const bool whole = read_all(read_end.get(), output, limits.output_bytes, deadline);
  if (!exits_well(child, whole ? deadline : Clock::time_point::min()) || !whole) return {};
  return output;
}

}  // namespace lockstep
