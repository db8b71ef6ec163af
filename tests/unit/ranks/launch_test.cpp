#include "lockstep/ranks/launch.hpp"

#include <map>
#include <vector>

#include "lockstep/base/error.hpp"
#include "support/catch.hpp"
#include "support/throws.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using test::thrown_id;

namespace {

using Variables = std::map<std::string, std::string>;

Environment environment_of(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

Launch launch_of(Variables variables, const LaunchOptions& options = {}) {
  return find_launch(options, environment_of(std::move(variables)));
}

/// The text of the error that this start ends with.
std::string refusal_of(Variables variables, const LaunchOptions& options = {}) {
  try {
    (void)launch_of(std::move(variables), options);
  } catch (const ConfigError& error) {
    CATCH_CHECK(error.id() == "invalid-launch");
    return error.what();
  }
  return "none";
}

Variables with(Variables variables, const Variables& others) {
  for (const auto& [name, value] : others) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

/// Rank 3 of 4, the second on the second of two machines.
const Variables torchrun = {{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"GROUP_RANK", "1"},
                            {"GROUP_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "node1"},
                            {"MASTER_PORT", "29400"},
                            {"TORCHELASTIC_RUN_ID", "none"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables mpich = {
    {"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables mvapich2 = {{"MV2_COMM_WORLD_RANK", "3"},
                            {"MV2_COMM_WORLD_SIZE", "4"},
                            {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
                            {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables slurm = {{"SLURM_PROCID", "3"},       {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "1"},      {"SLURM_NTASKS_PER_NODE", "2"},
                         {"SLURM_NODEID", "1"},       {"SLURM_STEP_ID", "0"},
                         {"SLURM_JOB_ID", "1234567"}, {"SLURM_JOB_NODELIST", "gpu[03-04]"}};
const Variables meeting = {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29400"}};

}  // namespace

CATCH_TEST_CASE("without variables and options a process is the only rank") {
  CATCH_CHECK(launch_of({}) == Launch{});
  CATCH_CHECK(launch_of({{"MASTER_ADDR", "node1"}, {"LOCAL_RANK", "3"}}) == Launch{});
}

CATCH_TEST_CASE("every launcher's variables are understood") {
  const auto [launcher, variables] =
      GENERATE(table<std::string, Variables>({{"torchrun", torchrun},
                                              {"the environment", without(torchrun, "TORCHELASTIC_RUN_ID")},
                                              {"Open MPI", with(open_mpi, meeting)},
                                              {"MPICH", with(mpich, meeting)},
                                              {"MVAPICH2", with(mvapich2, meeting)},
                                              {"SLURM", with(slurm, meeting)}}));
  const Launch launch = launch_of(variables);
  CATCH_CHECK(launch.launcher == launcher);
  CATCH_CHECK(launch.rank == 3);
  CATCH_CHECK(launch.world_size == 4);
  CATCH_CHECK(launch.local_rank == 1);
  CATCH_CHECK(launch.local_size == 2);
  CATCH_CHECK(launch.host == "node1");
  CATCH_CHECK(launch.port == 29400);
  CATCH_CHECK(launch.file.empty());
  CATCH_CHECK_FALSE(launch.listened_to);
  CATCH_CHECK(launch.warning.empty());
}

CATCH_TEST_CASE("where several launchers left variables, the first of the list counts") {
  const std::vector<std::pair<std::string, Variables>> in_order = {{"torchrun", torchrun},
                                                                   {"Open MPI", open_mpi},
                                                                   {"MPICH", mpich},
                                                                   {"MVAPICH2", mvapich2},
                                                                   {"SLURM", slurm}};
  for (std::size_t first = 0; first < in_order.size(); ++first) {
    Variables variables = meeting;
    for (std::size_t i = first; i < in_order.size(); ++i)
      variables.insert(in_order[i].second.begin(), in_order[i].second.end());
    CATCH_CHECK(launch_of(variables).launcher == in_order[first].first);
  }
}

CATCH_TEST_CASE("what the program says wins, field by field") {
  const Launch launch = launch_of(torchrun, {.rank = 2, .local_rank = 0});
  CATCH_CHECK(launch.rank == 2);
  CATCH_CHECK(launch.world_size == 4);
  CATCH_CHECK(launch.local_rank == 0);
  CATCH_CHECK(launch.host == "node1");

  const Launch alone = launch_of({}, {.rank = 1, .world_size = 2, .meeting_point = "node5:4000"});
  CATCH_CHECK(alone == Launch{.rank = 1,
                              .world_size = 2,
                              .local_rank = 1,
                              .local_size = 2,
                              .host = "node5",
                              .port = 4000,
                              .launcher = "the program"});
}

CATCH_TEST_CASE("a program that says it is the only rank is, beside the ranks of a launcher too") {
  const Launch launch = find_launch({.rank = 0, .world_size = 1},
                                    environment_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}));
  CATCH_CHECK(launch == Launch{.launcher = "the program"});
}

CATCH_TEST_CASE("a meeting point is a host with a port, or a file") {
  const LaunchOptions ranks{.rank = 0, .world_size = 2};
  const auto at = [&](const std::string& text) {
    auto options = ranks;
    options.meeting_point = text;
    return launch_of({}, options);
  };
  CATCH_CHECK(at("[fe80::1]:29501").host == "fe80::1");
  CATCH_CHECK(at("[fe80::1]:29501").port == 29501);
  CATCH_CHECK(at("node1:65535").port == 65535);
  CATCH_CHECK(at("file:///shared/run7").file == "/shared/run7");
  CATCH_CHECK(at("file:///shared/run7").host.empty());
  const auto text = GENERATE("", "node1", ":29500", "node1:0", "node1:65536", "node1:port",
                             "node1:", "file://", "file://run7", "file://a:29500");
  CATCH_CHECK_THAT(refusal_of({}, {.rank = 0, .world_size = 2, .meeting_point = text}),
                   Contains("launch.meeting_point is \"" + std::string(text) + "\", give \"host:port\""));
}

CATCH_TEST_CASE("a meeting point of the program's is not the one its launcher listens at") {
  const auto agent = with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  CATCH_CHECK(launch_of(agent).listened_to);
  CATCH_CHECK_FALSE(launch_of(agent, {.meeting_point = "node1:29400"}).listened_to);
  CATCH_CHECK_FALSE(launch_of(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).listened_to);
}

CATCH_TEST_CASE("a start anew has its number") {
  CATCH_CHECK(launch_of(torchrun).restart == 2);
  CATCH_CHECK(launch_of(without(torchrun, "TORCHELASTIC_RESTART_COUNT")).restart == 0);
}

CATCH_TEST_CASE("a plain shell needs no more than rank and world size on one machine") {
  CATCH_CHECK(launch_of({{"RANK", "1"}, {"WORLD_SIZE", "3"}}) == Launch{.rank = 1,
                                                                        .world_size = 3,
                                                                        .local_rank = 1,
                                                                        .local_size = 3,
                                                                        .host = "127.0.0.1",
                                                                        .port = 29500,
                                                                        .launcher = "the environment"});
  const Launch told =
      launch_of({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}});
  CATCH_CHECK(told.local_rank == 1);
  CATCH_CHECK(told.port == 29500);
}

CATCH_TEST_CASE("ranks on one machine meet there whoever started them") {
  const Variables one_machine = {
      {"OMPI_COMM_WORLD_SIZE", "2"}, {"PMI_SIZE", "2"}, {"MV2_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_RANK", "1"}, {"PMI_RANK", "1"}, {"MV2_COMM_WORLD_RANK", "1"}};
  for (const auto& variables : {open_mpi, mpich, mvapich2}) {
    Variables used;
    for (const auto& [name, value] : variables)
      used[name] = one_machine.contains(name) ? one_machine.at(name) : value;
    CATCH_CHECK(launch_of(used).host == "127.0.0.1");
    CATCH_CHECK(launch_of(used).port == 29500);
  }
}

CATCH_TEST_CASE("ranks on several machines must be told where rank 0 is, except in SLURM") {
  CATCH_CHECK_THAT(refusal_of(open_mpi), Contains("MASTER_ADDR is not set") &&
                                             Contains("start by Open MPI") &&
                                             Contains("mpirun -x MASTER_ADDR=HOST"));
  CATCH_CHECK_THAT(refusal_of(mpich),
                   Contains("MASTER_ADDR is not set") && Contains("-genv MASTER_ADDR HOST"));
  CATCH_CHECK_THAT(refusal_of(mvapich2), Contains("MASTER_ADDR is not set") && Contains("mpirun_rsh"));
  CATCH_CHECK_THAT(refusal_of(without(torchrun, "MASTER_ADDR")),
                   Contains("MASTER_ADDR is not set") && Contains("start by torchrun"));
  CATCH_CHECK(launch_of(slurm).host == "gpu03");
}

CATCH_TEST_CASE("jobs of SLURM meet at a port of their own") {
  CATCH_CHECK(launch_of(slurm).port == 15000 + 4567);
  CATCH_CHECK(launch_of(with(slurm, {{"SLURM_JOB_ID", "12"}})).port == 15012);
  CATCH_CHECK(launch_of(with(slurm, {{"MASTER_PORT", "4000"}})).port == 4000);
  CATCH_CHECK(launch_of(without(slurm, "SLURM_JOB_ID")).port == 29500);
}

CATCH_TEST_CASE("the nodes of SLURM's step count before those of its job") {
  const auto step =
      with(slurm, {{"SLURM_STEP_NODELIST", "gpu[07,09]"}, {"SLURM_STEP_TASKS_PER_NODE", "1,3"}});
  CATCH_CHECK(launch_of(step).host == "gpu07");
  CATCH_CHECK(launch_of(step).local_size == 3);
  CATCH_CHECK(launch_of(with(without(slurm, "SLURM_JOB_NODELIST"), {{"SLURM_NODELIST", "a,b"}})).host == "a");
}

CATCH_TEST_CASE("SLURM's variables do not count in a job that a person works in") {
  const auto job = GENERATE("bash", "interactive");
  const Launch launch = launch_of(with(slurm, {{"SLURM_JOB_NAME", job}}));
  CATCH_CHECK(launch.world_size == 1);
  CATCH_CHECK(launch.launcher == "none");
  CATCH_CHECK_THAT(launch.warning,
                   Contains("4 tasks of SLURM do not count in a job called \"" + std::string(job) + "\""));
  CATCH_CHECK(launch_of({{"SLURM_JOB_NAME", job}, {"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}}) == Launch{});
  CATCH_CHECK(launch_of(without(slurm, "SLURM_NTASKS")) == Launch{});
  CATCH_CHECK(launch_of(with(slurm, {{"SLURM_JOB_NAME", "train"}})).launcher == "SLURM");
}

CATCH_TEST_CASE("one task of SLURM needs neither srun nor a node list") {
  const Launch launch = launch_of({{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}});
  CATCH_CHECK(launch.world_size == 1);
  CATCH_CHECK(launch.launcher == "SLURM");
}

CATCH_TEST_CASE("several tasks of SLURM without srun are a mistake, since only one process runs") {
  CATCH_CHECK_THAT(refusal_of(without(slurm, "SLURM_STEP_ID")),
                   Contains("SLURM_STEP_ID is not set") && Contains("with srun"));
}

CATCH_TEST_CASE("the variables of MPI that SLURM's own process manager sets do not hide SLURM") {
  CATCH_CHECK(launch_of(with(slurm, {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}})).launcher == "SLURM");
  CATCH_CHECK_THAT(refusal_of({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}),
                   Contains("MPI_LOCALRANKID is not set") && Contains("MPI_LOCALNRANKS is not set"));
}

CATCH_TEST_CASE("torchrun inside SLURM is followed, with a warning where they disagree") {
  CATCH_CHECK(launch_of(with(with(slurm, torchrun), {{"SLURM_NTASKS", "4"}})).warning.empty());
  CATCH_CHECK(
      launch_of(with(with(slurm, torchrun), {{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}})).warning.empty());
  const Launch other = launch_of(with(with(slurm, torchrun), {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "6"}}));
  CATCH_CHECK(other.launcher == "torchrun");
  CATCH_CHECK(other.rank == 3);
  CATCH_CHECK_THAT(other.warning, Contains("rank 3 of 4") && Contains("task 6 of 8"));
  CATCH_CHECK_THAT(
      launch_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}).warning,
      Contains("rank 1 of 2") && Contains("task 0 of 2"));
  CATCH_CHECK(launch_of({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}})
                  .warning.empty());
}

CATCH_TEST_CASE("half a set of variables is an error, since each process would train for itself") {
  CATCH_CHECK_THAT(refusal_of({{"RANK", "0"}}), Contains("WORLD_SIZE is not set") && Contains("torchrun"));
  CATCH_CHECK_THAT(refusal_of({{"WORLD_SIZE", "2"}}), Contains("- RANK is not set"));
  CATCH_CHECK_THAT(refusal_of({{"WORLD_SIZE", "2"}, {"RANK", ""}}), Contains("- RANK is not set"));
  CATCH_CHECK_THAT(refusal_of({}, {.rank = 1}),
                   Contains("launch.world_size is not set") && Contains("the program"));
  CATCH_CHECK_THAT(refusal_of({}, {.world_size = 2}), Contains("launch.rank is not set"));
  CATCH_CHECK(launch_of({{"WORLD_SIZE", "2"}}, {.rank = 1}).rank == 1);
}

CATCH_TEST_CASE("everything that is missing or malformed is named at once") {
  const std::string text = refusal_of({{"RANK", "two"},
                                       {"WORLD_SIZE", "4.0"},
                                       {"LOCAL_RANK", "-1"},
                                       {"MASTER_ADDR", "a"},
                                       {"MASTER_PORT", "65536"}});
  CATCH_CHECK_THAT(text, Contains("RANK is \"two\", give an integer from 0 to"));
  CATCH_CHECK_THAT(text, Contains("WORLD_SIZE is \"4.0\", give an integer from 1 to"));
  CATCH_CHECK_THAT(text, Contains("LOCAL_RANK is \"-1\", give an integer from 0 to"));
  CATCH_CHECK_THAT(text, Contains("MASTER_PORT is \"65536\", give an integer from 1 to 65535"));

  const std::string in_slurm = refusal_of({{"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}});
  CATCH_CHECK_THAT(in_slurm, Contains("start by SLURM") && Contains("SLURM_PROCID is not set") &&
                                 Contains("SLURM_LOCALID is not set") &&
                                 Contains("SLURM_NTASKS_PER_NODE is not set"));

  CATCH_CHECK_THAT(refusal_of({}, {.rank = -1, .world_size = 0}),
                   Contains("launch.rank is \"-1\"") && Contains("launch.world_size is \"0\""));
}

CATCH_TEST_CASE("numbers that contradict each other are an error") {
  CATCH_CHECK_THAT(refusal_of(with(torchrun, {{"RANK", "4"}})),
                   Contains("RANK is 4, but WORLD_SIZE is 4, which leaves 0 to 3"));
  CATCH_CHECK_THAT(refusal_of(with(torchrun, {{"LOCAL_RANK", "2"}})),
                   Contains("LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2"));
  CATCH_CHECK_THAT(refusal_of(with(torchrun, {{"LOCAL_WORLD_SIZE", "5"}})),
                   Contains("LOCAL_WORLD_SIZE is 5, more than WORLD_SIZE, which is 4"));
  CATCH_CHECK_THAT(refusal_of(torchrun, {.world_size = 3}),
                   Contains("RANK is 3, but launch.world_size is 3"));
  CATCH_CHECK_THAT(refusal_of({}, {.local_rank = 1}),
                   Contains("launch.local_rank is 1, but the number of ranks is 1"));
}

CATCH_TEST_CASE("a node list that is none is named") {
  CATCH_CHECK_THAT(refusal_of(with(slurm, {{"SLURM_JOB_NODELIST", "gpu[03"}})),
                   Contains("SLURM_JOB_NODELIST is \"gpu[03\""));
  CATCH_CHECK_THAT(refusal_of(without(slurm, "SLURM_JOB_NODELIST")),
                   Contains("SLURM_JOB_NODELIST is not set"));
  CATCH_CHECK_THAT(refusal_of(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "2"}})),
                   Contains("SLURM_STEP_TASKS_PER_NODE is \"2\""));
}

CATCH_TEST_CASE("without an environment of its own, find_launch reads that of the process") {
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "2", 1);
  const Launch launch = find_launch();
  unsetenv("RANK");
  unsetenv("WORLD_SIZE");
  CATCH_CHECK(launch.rank == 1);
  CATCH_CHECK(process_environment("RANK") == std::nullopt);
}
