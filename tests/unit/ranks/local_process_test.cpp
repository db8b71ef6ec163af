#include "ranks/local_process.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/catch.hpp"

using namespace lockstep;

namespace {

/// A child process that says its name and waits.
class Child {
 public:
  Child() {
    int ends[2];
    CATCH_REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto name = name_of_this_process();
      if (::write(ends[1], name.data(), name.size()) < 0) ::_exit(1);
      ::pause();
      ::_exit(0);
    }
    char bytes[512];
    const auto size = ::read(ends[0], bytes, sizeof bytes);
    name_.assign(bytes, static_cast<std::size_t>(size));
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  [[nodiscard]] const std::string& name() const { return name_; }
  /// Waits until it has stopped or ended by the signal, and leaves it as it is then.
  void send(int signal) const {
    ::kill(pid_, signal);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WSTOPPED | WNOWAIT);
  }

 private:
  pid_t pid_ = -1;
  std::string name_;
};

}  // namespace

CATCH_TEST_CASE("a process of this machine is seen running until it is stopped or ends") {
  const Child stopped, killed;
  CATCH_CHECK(stopped.name() != killed.name());
  CATCH_CHECK(look_for(stopped.name()) == Seen::running);
  CATCH_CHECK(look_for(killed.name()) == Seen::running);
  stopped.send(SIGSTOP);
  killed.send(SIGKILL);
  CATCH_CHECK(look_for(stopped.name()) == Seen::ended_or_stopped);
  CATCH_CHECK(look_for(killed.name()) == Seen::ended_or_stopped);
  CATCH_CHECK(look_for(name_of_this_process()) == Seen::running);
}

CATCH_TEST_CASE("another process with the number of one that ended is not taken for it") {
  const auto own = name_of_this_process();
  CATCH_CHECK(look_for(own + "0") == Seen::ended_or_stopped);
}

CATCH_TEST_CASE("nothing is said of a process of another machine or container") {
  const auto own = name_of_this_process();
  CATCH_CHECK(look_for("another" + own) == Seen::nowhere);
  CATCH_CHECK(look_for("") == Seen::nowhere);
}
