// Ranks of a test that talk to each other without an Accelerator.
#pragma once

#include <chrono>
#include <memory>
#include <sstream>
#include <string>

#include "ranks/process_group.hpp"
#include "support/ranks.hpp"

namespace lockstep::test {

inline Launch launch_of(const Rank& rank) {
  Launch launch{.rank = rank.number,
                .world_size = rank.world_size,
                .local_rank = rank.number,
                .local_size = rank.world_size};
  if (rank.port == 0) {
    launch.file = rank.directory / "meeting";
  } else {
    launch.host = "127.0.0.1";
    launch.port = rank.port;
  }
  return launch;
}

inline std::shared_ptr<Collectives> join(const Rank& rank,
                                         GroupOptions options = {.timeout = std::chrono::seconds(20)}) {
  return join_ranks(launch_of(rank), options);
}

/// The elements of a tensor in their logical order.
inline std::string text_of(const at::Tensor& tensor) {
  std::ostringstream text;
  const auto flat = tensor.detach().to(torch::kCPU, torch::kDouble).reshape({-1});
  for (std::int64_t i = 0; i < flat.numel(); ++i) text << (i ? " " : "") << flat[i].item<double>();
  return text.str();
}

}  // namespace lockstep::test
