#include "lockstep/ranks/launch.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <vector>

#include "base/rank_messages.hpp"
#include "ranks/slurm.hpp"

namespace lockstep {
namespace {

constexpr int any_number = std::numeric_limits<int>::max();
constexpr int last_port = 65535;
constexpr int default_port = 29500;

/// The names of a launcher's variables.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_size;
};

constexpr Launcher environment_itself = {"the environment", "RANK", "WORLD_SIZE", "LOCAL_RANK",
                                         "LOCAL_WORLD_SIZE"};
constexpr Launcher open_mpi = {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                               "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher mpich = {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
constexpr Launcher mvapich2 = {"MVAPICH2", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
                               "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher slurm = {"SLURM", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
                            "SLURM_NTASKS_PER_NODE"};

std::optional<int> whole_number(std::string_view text, int low, int high) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < low || number > high)
    return std::nullopt;
  return number;
}

/// A number and what it is called where it was given.
struct Field {
  int value;
  std::string name;
};

class Search {
 public:
  Search(const LaunchOptions& options, const Environment& environment)
      : options_(options), environment_(environment), launcher_(find_launcher()) {}

  Launch run() {
    if (!launcher_ && !options_.rank && !options_.world_size) {
      launch_.warning = warning_of_slurm_left_out();
      if (!options_.local_rank && !options_.meeting_point) return launch_;
    } else {
      launch_.launcher = name();
    }
    const Field world_size = find_world_size();
    const Field rank = find_rank();
    const Field local_size = find_local_size(world_size);
    const Field local_rank = find_local_rank(rank, local_size);
    if (problems_.empty()) {
      compare(rank, world_size);
      compare(local_rank, local_size);
      if (local_size.value > world_size.value) {
        problems_.push_back(
            message::problem_of_sizes(local_size.name, local_size.value, world_size.name, world_size.value));
      }
    }
    launch_.rank = rank.value;
    launch_.world_size = world_size.value;
    launch_.local_rank = local_rank.value;
    launch_.local_size = local_size.value;
    find_meeting_point();
    if (is(environment_itself)) {
      launch_.restart = number("TORCHELASTIC_RESTART_COUNT", 0).value_or(Field{0, ""}).value;
      launch_.warning = warning_of_disagreement();
    }
    if (!problems_.empty()) throw message::invalid_launch(name(), problems_);
    return launch_;
  }

 private:
  std::optional<std::string> text(const char* name) const {
    auto value = environment_(name);
    if (value && value->empty()) value.reset();
    return value;
  }

  /// Nothing where the variable is unset or, after it has been noted, malformed.
  std::optional<Field> number(const char* name, int low, int high = any_number) {
    const auto given = text(name);
    if (!given) return std::nullopt;
    const auto value = whole_number(*given, low, high);
    if (!value) problems_.push_back(message::problem_number(name, *given, low, high));
    return value ? std::optional(Field{*value, name}) : std::nullopt;
  }

  std::optional<Field> option(const char* name, const std::optional<int>& given, int low) {
    if (!given) return std::nullopt;
    if (*given < low)
      problems_.push_back(message::problem_number(name, std::to_string(*given), low, any_number));
    return Field{std::max(*given, low), name};
  }

  Field required(const char* name, int low) {
    if (!text(name)) problems_.push_back(message::problem_unset(name));
    return number(name, low).value_or(Field{low, name});
  }

  [[nodiscard]] bool is(const Launcher& launcher) const { return launcher_ == &launcher; }

  [[nodiscard]] std::string name() const {
    if (!launcher_) return "the program";
    if (is(environment_itself) && text("TORCHELASTIC_RUN_ID")) return "torchrun";
    return launcher_->name;
  }

  [[nodiscard]] bool a_person_works_in_the_job() const {
    const auto job = text("SLURM_JOB_NAME");
    return job == "bash" || job == "interactive";
  }

  [[nodiscard]] const Launcher* find_launcher() const {
    const bool in_slurm = text(slurm.world_size) && !a_person_works_in_the_job();
    for (const Launcher* launcher : {&environment_itself, &open_mpi, &mpich, &mvapich2}) {
      // SLURM's own process manager for MPI sets PMI_RANK and PMI_SIZE too, but nothing about the machine.
      if (launcher == &mpich && in_slurm && !text(mpich.local_rank)) continue;
      if (text(launcher->rank) && text(launcher->world_size)) return launcher;
    }
    if (in_slurm) return &slurm;
    // One alone is a mistake: each process would train for itself.
    return text("RANK") || text("WORLD_SIZE") ? &environment_itself : nullptr;
  }

  Field find_world_size() {
    if (const auto given = option("launch.world_size", options_.world_size, 1)) return *given;
    if (launcher_) return required(launcher_->world_size, 1);
    if (options_.rank) problems_.push_back(message::problem_unset("launch.world_size"));
    return {1, "the number of ranks"};
  }

  Field find_rank() {
    if (const auto given = option("launch.rank", options_.rank, 0)) return *given;
    if (launcher_) return required(launcher_->rank, 0);
    if (options_.world_size) problems_.push_back(message::problem_unset("launch.rank"));
    return {0, "the rank"};
  }

  Field find_local_size(const Field& world_size) {
    if (!launcher_ || is(environment_itself)) {
      const auto given = launcher_ ? number(launcher_->local_size, 1) : std::nullopt;
      return given.value_or(world_size);
    }
    if (is(slurm)) return find_local_size_in_slurm(world_size);
    return required(launcher_->local_size, 1);
  }

  /// srun says how many tasks of this step each node has; what was asked of sbatch may be more.
  Field find_local_size_in_slurm(const Field& world_size) {
    if (world_size.value == 1) return world_size;
    if (!text("SLURM_STEP_ID")) problems_.push_back(message::problem_unset("SLURM_STEP_ID"));
    const char* const name = "SLURM_STEP_TASKS_PER_NODE";
    const auto list = text(name);
    if (!list) return required(slurm.local_size, 1);
    const Field node = required("SLURM_NODEID", 0);
    const auto tasks = tasks_on_node(*list, node.value);
    if (!tasks)
      problems_.push_back(message::problem_text(name, *list, "4(x2),3 with an entry for this node"));
    return {tasks.value_or(1), name};
  }

  Field find_local_rank(const Field& rank, const Field& local_size) {
    if (const auto given = option("launch.local_rank", options_.local_rank, 0)) return *given;
    if (launcher_ && !is(environment_itself)) return required(launcher_->local_rank, 0);
    const auto given = launcher_ ? number(launcher_->local_rank, 0) : std::nullopt;
    return given.value_or(Field{rank.value % local_size.value, rank.name});
  }

  void compare(const Field& rank, const Field& size) {
    if (rank.value >= size.value) {
      problems_.push_back(message::problem_of_ranks(rank.name, rank.value, size.name, size.value));
    }
  }

  void find_meeting_point() {
    if (options_.meeting_point) return read_meeting_point(*options_.meeting_point);
    const auto host = text("MASTER_ADDR");
    if (host) {
      launch_.host = *host;
    } else if (launch_.local_size == launch_.world_size) {
      launch_.host = "127.0.0.1";
    } else if (is(slurm)) {
      launch_.host = host_of_rank_0();
    } else {
      problems_.push_back(message::problem_unset("MASTER_ADDR"));
    }
    const auto port = number("MASTER_PORT", 1, last_port);
    launch_.port = port ? port->value : is(slurm) ? port_of_job() : default_port;
    launch_.listened_to = is(environment_itself) && text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  }

  void read_meeting_point(std::string_view text) {
    constexpr std::string_view file = "file://";
    const auto colon = text.rfind(':');
    const auto port = colon == text.npos ? std::nullopt : whole_number(text.substr(colon + 1), 1, last_port);
    if (text.starts_with(file) && text.substr(file.size()).starts_with("/")) {
      launch_.file = text.substr(file.size());
    } else if (port && colon > 0 && !text.starts_with(file)) {
      auto host = text.substr(0, colon);
      if (host.starts_with("[") && host.ends_with("]")) host = host.substr(1, host.size() - 2);
      launch_.host = host;
      launch_.port = *port;
    } else {
      problems_.push_back(message::problem_meeting_point(std::string(text)));
    }
  }

  std::string host_of_rank_0() {
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}) {
      const auto list = text(name);
      if (!list) continue;
      if (const auto host = first_host(*list)) return *host;
      problems_.push_back(message::problem_text(name, *list, "host[1-3,7],login1"));
      return "";
    }
    problems_.push_back(message::problem_unset("SLURM_JOB_NODELIST"));
    return "";
  }

  /// Jobs that share a machine meet at ports of their own.
  int port_of_job() {
    const auto job = number("SLURM_JOB_ID", 0);
    return job ? 15000 + job->value % 10000 : default_port;
  }

  /// Of a launcher that is not followed.
  [[nodiscard]] std::optional<int> other_number(const char* name) const {
    return whole_number(text(name).value_or(""), 0, any_number);
  }

  /// srun may have started the launchers instead of the ranks, one on each machine.
  [[nodiscard]] std::string warning_of_disagreement() const {
    const auto task = other_number(slurm.rank);
    const auto tasks = other_number(slurm.world_size);
    if (!task || !tasks || a_person_works_in_the_job()) return "";
    const bool ranks_by_torchrun = text("TORCHELASTIC_RUN_ID").has_value();
    const bool agree = *tasks == other_number("GROUP_WORLD_SIZE").value_or(1) ||
                       (*tasks == launch_.world_size && (ranks_by_torchrun || *task == launch_.rank));
    if (agree) return "";
    return message::warning_of_slurm(launch_.launcher, launch_.rank, launch_.world_size, *task, *tasks);
  }

  [[nodiscard]] std::string warning_of_slurm_left_out() const {
    const auto tasks = other_number(slurm.world_size);
    if (!tasks || *tasks < 2) return "";
    return message::warning_of_interactive(*text("SLURM_JOB_NAME"), *tasks);
  }

  const LaunchOptions& options_;
  const Environment& environment_;
  const Launcher* launcher_;
  Launch launch_;
  std::vector<std::string> problems_;
};

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

Launch find_launch(const LaunchOptions& options, const Environment& environment) {
  // Beside the ranks of a launcher too.
  const bool only_rank = options.world_size == 1 && options.rank == 0 && !options.meeting_point;
  if (only_rank && !options.local_rank) return {.launcher = "the program"};
  return Search(options, environment).run();
}

}  // namespace lockstep
