#include "base/rank_messages.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::message {

RankError rank_failed(const std::vector<std::pair<int, std::string>>& failures) {
  std::string text;
  for (const auto& [rank, what] : failures) text += fmt::format("\n  - rank {}: {}", rank, what);
  return {"rank-failed", fmt::format("the run ends on every rank, because not all could go on:{}\nMend what is "
                                     "reported there; the last checkpoint is whole.",
                                     text)};
}

RankError rank_lost(const std::string& during, const std::vector<int>& missing, const std::string& reason) {
  const auto who = missing.empty() ? std::string("a rank")
                   : missing.size() == 1
                       ? fmt::format("rank {}", missing.front())
                       : fmt::format("the ranks {}", fmt::join(missing, ", "));
  return {"rank-lost",
          fmt::format("{} ended or stopped answering ({}): {}. Look at its output and at the machine it ran on, "
                      "memory above all; start all ranks again to go on from the last checkpoint.",
                      who, during, reason)};
}

RankError ranks_not_joined(int expected, const std::vector<int>& missing, const std::string& meeting_point,
                           std::chrono::milliseconds waited, const std::string& cause) {
  const auto who =
      missing.empty() ? std::string() : fmt::format(" Missing: rank {}.", fmt::join(missing, ", "));
  return {"ranks-not-joined",
          fmt::format("the {} ranks of this run did not all meet at {} within {:.1f} s.{} Start as many processes as "
                      "the world size says, each with its own rank, and check that this address can be reached from "
                      "all of them ({}).",
                      expected, meeting_point, std::chrono::duration<double>(waited).count(), who, cause)};
}

RankError ranks_differ(const std::vector<std::string>& differences) {
  return {"ranks-differ", fmt::format("the ranks do not run the same training:\n  - {}\nStart the same program with the "
                                      "same settings, data and library on every rank.",
                                      fmt::join(differences, "\n  - "))};
}

RankError weights_differ(const std::string& parameter, int rank, std::int64_t update) {
  return {"weights-differ",
          fmt::format("after update {} the weights of rank {} are not those of rank 0; the first that differs is "
                      "\"{}\". Something changes it on one rank alone: a write from outside of the Trainer, or faulty "
                      "memory.",
                      update, rank, parameter)};
}

std::string another_rank_was_asked_to_stop(int rank) { return fmt::format("rank {} was asked to stop", rank); }

}  // namespace lockstep::message
