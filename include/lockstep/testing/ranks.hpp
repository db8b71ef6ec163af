// The invariant of ranks: N of them give the update of one that sees all their batches.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/files/weights_file.hpp"
#include "lockstep/testing/accumulation.hpp"
#include "lockstep/testing/case.hpp"
#include "lockstep/testing/record.hpp"

namespace lockstep::testing {

namespace detail {

/// What must be the same on all ranks: all but the generators, the buffers, which each rank has its own of, and
/// averages of buffers.
template <class Run>
std::string digest_of_common_state(Run& run) {
  std::vector<std::string> own;
  for (const auto& buffer : run.model().named_buffers()) own.push_back("/" + buffer.key());
  NamedTensors common;
  for (auto& tensor : run.record().tensors) {
    const bool of_rank = tensor.first.starts_with("generator") ||
                         std::any_of(own.begin(), own.end(), [&](const auto& name) { return tensor.first.ends_with(name); });
    if (!of_rank) common.push_back(std::move(tensor));
  }
  return sha256(common);
}

}  // namespace detail

/// The ranks of a run give the update of one rank that sees all their batches, in the epoch's shorter last window too,
/// and have the same weights, optimizer state and averages to the last bit.
///
/// Every rank calls it, and all get the same answer: start the tests with `lockstep launch -n 2`, or hand `launch` over.
/// Compared with a loop over torch's own optimizer and clipping, in which one batch holds all samples of a window. For
/// Steps in which samples do not influence each other.
template <Case C>
[[nodiscard]] Finding check_ranks(const C& c, const LaunchOptions& launch = {}, const AccumulateOptions& options = {}) {
  auto settings = detail::plain_settings(c);
  settings.accelerator.launch = launch;
  settings.accelerator.precision = options.precision;
  auto& loss_scaler = settings.accelerator.loss_scaler;
  if (!scales_loss(options.precision)) loss_scaler = {};
  if (scales_loss(options.precision) && !loss_scaler) loss_scaler = {{.initial_scale = 128}};
  settings.loader.drop_last = false;
  CaseRun<C> run(c, settings);
  const NamedTensors start = copies(trainable_parameters(run.model()));
  const int ranks = run.accelerator().world_size();
  run.train();

  auto& agreement = run.accelerator().agreement();
  const auto digests = agreement.exchange(detail::digest_of_common_state(run));
  for (std::size_t rank = 1; rank < digests.size(); ++rank) {
    if (digests[rank] != digests[0]) return {"rank " + std::to_string(rank) + " ends in another state than rank 0"};
  }

  auto concatenated = settings;
  concatenated.accelerator.launch = {.rank = 0, .world_size = 1};
  concatenated.loader.batch_size *= settings.accelerator.gradient_accumulation_steps * ranks;
  const auto difference = first_difference(start, detail::train_by_hand(c, concatenated),
                                           copies(trainable_parameters(run.model())), options.tolerance);
  return detail::finding(std::to_string(ranks) + " ranks against one with all batches", difference);
}

}  // namespace lockstep::testing
