// Checkpoints of a few numbers.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "files/checkpoint.hpp"

namespace lockstep::test {

/// A checkpoint whose only weight is `step`, three times.
inline Checkpoint small_checkpoint(std::int64_t step, std::int64_t save_index = 0,
                                   const std::string& run_id = "run") {
  const auto weight = torch::full({3}, static_cast<float>(step));
  return {.manifest = {{"run_id", run_id},
                       {"save_index", save_index},
                       {"state", {{"step", step}, {"batches", 2 * step}, {"best_metric", nullptr}}}},
          .model = {{"w", weight}},
          .ema = {{"w", weight / 2}},
          .optimizer = {{"w/exp_avg", weight * 2}},
          .rank = {{"generator", torch::arange(4, torch::kByte)}}};
}

/// The step whose weights `checkpoint` holds.
inline std::int64_t step_of(const Checkpoint& checkpoint) {
  return checkpoint.model.at(0).second[0].item<std::int64_t>();
}

}  // namespace lockstep::test
