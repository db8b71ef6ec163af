#include "ranks/local_process.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <system_error>
#include <vector>

namespace lockstep {
namespace {

/// Where process numbers mean the same: this boot of this machine, in this container. Empty: not known.
std::string place() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code error;
  const auto numbers = std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
  return boot.empty() || numbers.empty() ? "" : boot + "/" + numbers;
}

struct ProcessState {
  char state;
  std::string start_time;  ///< since numbers are given again
};

std::optional<ProcessState> state_of(const std::string& number) {
  std::string line;
  std::getline(std::ifstream("/proc/" + number + "/stat"), line);
  // The name, in parentheses, may hold anything.
  const auto end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return {};
  std::istringstream rest(line.substr(end_of_name + 1));
  const std::vector<std::string> fields(std::istream_iterator<std::string>(rest), {});
  if (fields.size() < 20) return {};
  return ProcessState{fields[0][0], fields[19]};
}

}  // namespace

std::string name_of_this_process() {
  const auto where = place();
  const auto number = std::to_string(::getpid());
  const auto state = state_of(number);
  return where.empty() || !state ? "" : where + " " + number + " " + state->start_time;
}

Seen look_for(const std::string& process) {
  std::istringstream fields(process);
  std::string where, number, start_time;
  if (!(fields >> where >> number >> start_time) || where != place()) return Seen::nowhere;
  const auto found = state_of(number);
  const std::string ended_or_stopped = "ZXTt";
  const bool running =
      found && found->start_time == start_time && ended_or_stopped.find(found->state) == std::string::npos;
  return running ? Seen::running : Seen::ended_or_stopped;
}

}  // namespace lockstep
