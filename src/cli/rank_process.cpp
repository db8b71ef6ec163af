#include "cli/rank_process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <system_error>
#include <utility>

namespace lockstep::cli {
namespace {

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;
};

Pipe make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const auto& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

/// In the new process: becomes the program. Returns only if that fails.
void become(char* const* program, char* const* environment, pid_t launcher, int output, int errors) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(EXIT_FAILURE);  // it died before it could be watched
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(output, STDOUT_FILENO);
  dup2(errors, STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execvpe(program[0], program, environment);
}

}  // namespace

RankProcess::RankProcess(int rank, const std::vector<std::string>& program,
                         const std::vector<std::string>& environment)
    : rank_(rank),
      streams_{Stream{FileDescriptor(), PrefixedLines(rank, STDOUT_FILENO)},
               Stream{FileDescriptor(), PrefixedLines(rank, STDERR_FILENO)}} {
  Pipe output = make_pipe();
  Pipe errors = make_pipe();
  Pipe failure = make_pipe();
  const auto program_pointers = pointers_to(program);
  const auto environment_pointers = pointers_to(environment);
  const pid_t launcher = getpid();
  id_ = fork();
  if (id_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (id_ == 0) {
    become(program_pointers.data(), environment_pointers.data(), launcher, output.write_end.get(),
           errors.write_end.get());
    const int reason = errno;
    (void)!write(failure.write_end.get(), &reason, sizeof reason);
    _exit(EXIT_FAILURE);
  }
  failure.write_end = FileDescriptor();
  int reason = 0;
  ssize_t got = 0;
  do {
    got = read(failure.read_end.get(), &reason, sizeof reason);  // ends with the pipe once the program runs
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    waitpid(id_, nullptr, 0);
    throw std::system_error(reason, std::generic_category(), program.front());
  }
  streams_[0].from = std::move(output.read_end);
  streams_[1].from = std::move(errors.read_end);
  for (const auto& stream : streams_) fcntl(stream.from.get(), F_SETFL, O_NONBLOCK);
}

RankProcess::~RankProcess() {
  kill_group();
  waitpid(id_, nullptr, 0);
}

bool RankProcess::has_just_ended() {
  if (ending_) return false;
  siginfo_t info{};
  // It stays a zombie, so that its number, which is its group's too, is not given to another.
  if (waitid(P_PID, static_cast<id_t>(id_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0)
    return false;
  const bool exited = info.si_code == CLD_EXITED;
  ending_ = exited ? Ending{info.si_status, 0} : Ending{128 + info.si_status, info.si_status};
  return true;
}

void RankProcess::send(int signal) const {
  if (!ending_) kill(id_, signal);
}

void RankProcess::kill_group() const { kill(-id_, SIGKILL); }

void pass_on(RankProcess::Stream& stream) {
  char buffer[1 << 16];
  const auto got = read(stream.from.get(), buffer, sizeof buffer);
  if (got > 0) {
    stream.lines.add({buffer, static_cast<std::size_t>(got)});
  } else if (got == 0 || (errno != EINTR && errno != EAGAIN)) {
    stream.lines.end();
    stream.from = FileDescriptor();
  }
}

}  // namespace lockstep::cli
