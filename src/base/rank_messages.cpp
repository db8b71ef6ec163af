#include "base/rank_messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::message {
namespace {

std::string launch_remedy(const std::string& launcher) {
  if (launcher == "SLURM") {
    return "Start the program with srun, and give sbatch or srun --ntasks-per-node: how many ranks a machine "
           "has.";
  }
  if (launcher == "Open MPI") {
    return "Start the program with mpirun; for several machines say where rank 0 is: "
           "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=PORT.";
  }
  if (launcher == "MPICH") {
    return "Start the program with mpiexec; for several machines say where rank 0 is: "
           "mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT PORT.";
  }
  if (launcher == "MVAPICH2") {
    return "Start the program with mpirun_rsh or mpiexec; for several machines say where rank 0 is with the "
           "variables MASTER_ADDR and MASTER_PORT.";
  }
  if (launcher == "the program") {
    return "Give launch.rank and launch.world_size together, and launch.meeting_point for several machines.";
  }
  return "Start the program with torchrun or `lockstep launch`, or set RANK, WORLD_SIZE, LOCAL_RANK, "
         "LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT for each process.";
}

}  // namespace

RankError rank_failed(const std::vector<std::pair<int, std::string>>& failures) {
  std::string text;
  for (const auto& [rank, what] : failures) text += fmt::format("\n  - rank {}: {}", rank, what);
  return {"rank-failed",
          fmt::format("the run ends on every rank, because not all could go on:{}\nMend what is "
                      "reported there; the last checkpoint is whole.",
                      text)};
}

RankError rank_lost(const std::string& during, const std::vector<int>& missing, const std::string& reason) {
  const auto who = missing.empty()       ? std::string("a rank")
                   : missing.size() == 1 ? fmt::format("rank {}", missing.front())
                                         : fmt::format("the ranks {}", fmt::join(missing, ", "));
  return {
      "rank-lost",
      fmt::format("{} ended or stopped answering ({}): {}. Look at its output and at the machine it ran on, "
                  "memory above all; start all ranks again to go on from the last checkpoint.",
                  who, during, reason)};
}

RankError ranks_not_joined(int expected, const std::vector<int>& missing, const std::string& meeting_point,
                           std::chrono::milliseconds waited, const std::string& cause) {
  const auto who =
      missing.empty() ? std::string() : fmt::format(" Missing: rank {}.", fmt::join(missing, ", "));
  return {"ranks-not-joined",
          fmt::format(
              "the {} ranks of this run did not all meet at {} within {:.1f} s.{} Start as many processes as "
              "the world size says, each with its own rank, and check that this address can be reached from "
              "all of them ({}).",
              expected, meeting_point, std::chrono::duration<double>(waited).count(), who, cause)};
}

RankError ranks_differ(const std::vector<std::string>& differences) {
  return {"ranks-differ",
          fmt::format("the ranks do not run the same training:\n  - {}\nStart the same program with the "
                      "same settings, data and library on every rank.",
                      fmt::join(differences, "\n  - "))};
}

std::string difference_of_version(int rank, const std::string& theirs, const std::string& ours) {
  return fmt::format("rank {} runs {}, this rank {}", rank, theirs, ours);
}

RankError rank_taken(int rank, const std::string& meeting_point) {
  return {"rank-taken",
          fmt::format(
              "another process came to {} as rank {} before. Give every process a rank of its own, and every "
              "start of a run a new meeting point: a file of an earlier start is not taken.",
              meeting_point, rank)};
}

RankError ranks_out_of_order(const std::vector<std::string>& calls) {
  return {
      "ranks-out-of-order",
      fmt::format(
          "the ranks are about to do different things together:\n  - {}\nWhat several ranks do together has "
          "to happen on all of them, in the same order and with the same sizes; look for a condition that "
          "only some of them meet.",
          fmt::join(calls, "\n  - "))};
}

std::string call_of_rank(int rank, std::int64_t number, const std::string& operation) {
  return fmt::format("rank {}: call {}, {}", rank, number, operation);
}

std::string difference_between_ranks(int rank, const std::string& place, const std::string& value,
                                     const std::string& on_main) {
  return fmt::format("rank {}: {} is {}, on rank 0 {}", rank, place, value, on_main);
}

RankError tensors_differ(const std::vector<std::string>& shapes) {
  std::string text;
  for (std::size_t rank = 0; rank < shapes.size(); ++rank) {
    text += fmt::format("\n  - rank {}: {}", rank, shapes[rank]);
  }
  return {"tensors-differ", fmt::format("the ranks brought tensors that do not fit together:{}\nGive all of them the same "
                                        "type and sizes; gather() allows other first dimensions.",
                                        text)};
}

RankError weights_differ(const std::string& parameter, int rank, std::int64_t update) {
  return {
      "weights-differ",
      fmt::format(
          "after update {} the weights of rank {} are not those of rank 0; the first that differs is "
          "\"{}\". Something changes it on one rank alone: a write from outside of the Trainer, or faulty "
          "memory.",
          update, rank, parameter)};
}

ConfigError invalid_launch(const std::string& launcher, const std::vector<std::string>& problems) {
  return {"invalid-launch",
          fmt::format("the start by {} does not say which rank of how many this process is:\n  - {}\n{}",
                      launcher, fmt::join(problems, "\n  - "), launch_remedy(launcher))};
}

std::string problem_unset(const std::string& name) { return fmt::format("{} is not set.", name); }

std::string problem_number(const std::string& name, const std::string& text, int low, int high) {
  return fmt::format("{} is \"{}\", give an integer from {} to {}.", name, text, low, high);
}

std::string problem_text(const std::string& name, const std::string& text, const std::string& example) {
  return fmt::format("{} is \"{}\", which is not of the form {}.", name, text, example);
}

std::string problem_of_ranks(const std::string& name, int rank, const std::string& size_name, int size) {
  return fmt::format("{} is {}, but {} is {}, which leaves 0 to {}.", name, rank, size_name, size, size - 1);
}

std::string problem_of_sizes(const std::string& local_name, int local_size, const std::string& name,
                             int size) {
  return fmt::format("{} is {}, more than {}, which is {}.", local_name, local_size, name, size);
}

std::string problem_meeting_point(const std::string& text) {
  return fmt::format(
      "launch.meeting_point is \"{}\", give \"host:port\" with a port from 1 to 65535, or "
      "\"file:///path\" of a file that does not exist yet.",
      text);
}

std::string problem_seconds(double seconds) {
  return fmt::format("is {}, give seconds from 0 up to a year", seconds);
}

std::string warning_of_slurm(const std::string& launcher, int rank, int world_size, int task, int tasks) {
  return fmt::format(
      "this process follows {}, which makes it rank {} of {}, though SLURM started it as task {} of {}. "
      "Unset RANK and WORLD_SIZE if srun should count, or ask SLURM for as many tasks as there are "
      "launchers.",
      launcher, rank, world_size, task, tasks);
}

std::string warning_of_interactive(const std::string& job, int tasks) {
  return fmt::format(
      "this process runs as the only rank: the {} tasks of SLURM do not count in a job called \"{}\", "
      "where a person works. For ranks give the step another name: srun --job-name=train.",
      tasks, job);
}

std::string problem_world_size(int saved, int now) {
  return fmt::format(
      "world_size is {}, here {}: start {} ranks, or set .resume_world_size = lockstep::allow to go on "
      "at the same sample with other windows",
      saved, now, saved);
}

std::string warning_world_size(int saved, int now) {
  return fmt::format(
      "the checkpoint is of {} ranks and goes on with {}: from here on an update covers another number of "
      "samples, and ranks that are new draw random numbers of their own",
      saved, now);
}

StepError sync_batch_norm_input(const std::vector<std::int64_t>& shape, std::int64_t features) {
  return {"sync-batch-norm-input",
          fmt::format("a SyncBatchNorm of {} features got an input of shape [{}]. Its second dimension must be the "
                      "features; give it [batch, {}] or [batch, {}, ...].",
                      features, fmt::join(shape, ", "), features, features)};
}

ConfigError sync_batch_norm_uneven(std::int64_t batches, int ranks) {
  const auto what = batches < 0 ? std::string("the source does not say how many batches an epoch has")
                                : fmt::format("an epoch's {} batches cannot be dealt evenly", batches);
  return {"sync-batch-norm-uneven",
          fmt::format("the model has a SyncBatchNorm, whose ranks wait for each other in every microbatch, but {} to {} "
                      "ranks. Set DataLoaderOptions::even_batches, or limit_train_batches to a multiple of {}.",
                      what, ranks, ranks)};
}

std::string problem_batch_norm_member(const std::string& name) {
  return fmt::format("\"{}\" is no part of a torch::nn::Sequential, so the class that holds it would go on calling the "
                     "old one: declare that member as lockstep::SyncBatchNorm",
                     name);
}

StepError gradient_after_sync(const std::string& parameter) {
  return {
      "gradient-after-sync",
      fmt::format(
          "the window's last backward pass added to the gradient of \"{}\" a second time, after it had been "
          "sent to the other ranks. Let the Step return one loss and leave backward() to the Trainer, or "
          "set AcceleratorOptions::overlap_sync = false.",
          parameter)};
}

std::string during_vote(const std::string& phase) { return fmt::format("a vote, phase {}", phase); }

std::string during_exchange() { return "an exchange of texts"; }

std::string during_broadcast(std::int64_t tensors, std::int64_t bytes) {
  return fmt::format("a broadcast of {} tensors, {} bytes", tensors, bytes);
}

std::string during_sum(std::int64_t values, std::int64_t bytes) {
  return fmt::format("a sum of {} values, {} bytes", values, bytes);
}

std::string during_barrier() { return "a barrier"; }

std::string inside_a_step(const std::string& operation) { return operation + " inside a Step"; }

std::string during_all() { return "this rank closed its connections"; }

std::string left_by_an_error() { return "an error ended its program"; }

std::string others_gave_up() { return "another rank has stopped waiting"; }

std::string meeting_point_lost(const std::string& meeting_point) {
  return fmt::format("{} does not answer any more", meeting_point);
}

std::string no_answer_in(std::chrono::milliseconds waited) {
  return fmt::format("no answer within {:.1f} s", std::chrono::duration<double>(waited).count());
}

std::string problem_rank_timeout(std::chrono::milliseconds value) {
  return fmt::format("rank_timeout is {} ms: give a time above zero.", value.count());
}

std::string problem_slice_bytes(std::int64_t value) {
  return fmt::format("slice_bytes is {}: give a size above zero; 25 MiB is the default.", value);
}

}  // namespace lockstep::message
