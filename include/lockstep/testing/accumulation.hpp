// The invariant of accumulation: microbatches give the update of their concatenation.
#pragma once

#include <torch/nn/utils/clip_grad.h>

#include <string>
#include <vector>

#include "lockstep/testing/case.hpp"
#include "lockstep/testing/record.hpp"

namespace lockstep::testing {

namespace detail {

/// Training as one would write it by hand, without accumulation, over torch's own optimizer and clipping.
template <Case C>
NamedTensors train_by_hand(const C& c, const CaseSettings& settings) {
  const Accelerator accelerator(settings.accelerator);
  const auto model = c.model();
  place_module(*model, accelerator.device(), *accelerator.placement().floating);
  const auto optimizer = c.optimizer(*model);
  DataLoader loader(c.train_set(), settings.loader);
  auto step = c.step();
  std::vector<double> base_rates;
  for (const auto& group : optimizer->param_groups()) base_rates.push_back(group.options().get_lr());

  model->train();
  const auto& config = settings.config;
  std::int64_t updates = 0;
  for (std::int64_t epoch = 0; epoch < config.epochs; ++epoch) {
    BatchStream batches(loader, epoch, 0);
    while (batches.more() && updates < config.max_steps.value_or(updates + 1)) {
      const double factor = settings.schedule ? settings.schedule->factor(updates) : 1;
      ++updates;
      for (std::size_t i = 0; i < base_rates.size(); ++i) {
        optimizer->param_groups()[i].options().set_lr(base_rates[i] * factor);
      }
      optimizer->zero_grad();
      lockstep::detail::call_step(step, *model, batches.next(), accelerator).loss.backward();
      if (config.max_grad_norm) torch::nn::utils::clip_grad_norm_(model->parameters(), *config.max_grad_norm);
      optimizer->step();
    }
  }
  return copies(trainable_parameters(*model));
}

}  // namespace detail

/// Of check_accumulate().
struct AccumulateOptions {
  /// Double precision keeps rounding far below any real mistake; the Step must work in it. fp16_mixed
  /// compares a scaled loss with one that is not: 128 times, unless the case sets a loss scaler.
  Precision precision = Precision::fp64;
  /// Of the distance that the parameter has moved since the start, by their largest elements.
  double tolerance = 1e-6;
};

/// 1, 2 and 3 microbatches give the update of their concatenation, in the epoch's shorter last window too.
///
/// Compared with a loop over torch's own optimizer and clipping, in which one batch holds all samples of a
/// window. For Steps in which samples do not influence each other: no dropout, no batch statistics.
template <Case C>
[[nodiscard]] Finding check_accumulate(const C& c, const AccumulateOptions& options = {}) {
  auto settings = detail::plain_settings(c);
  settings.accelerator.precision = options.precision;
  auto& loss_scaler = settings.accelerator.loss_scaler;
  if (!scales_loss(options.precision)) loss_scaler = {};
  if (scales_loss(options.precision) && !loss_scaler) loss_scaler = {{.initial_scale = 128}};
  settings.loader.drop_last = false;  // else the two would leave out different samples
  for (const std::int64_t count : {1, 2, 3}) {
    settings.accelerator.gradient_accumulation_steps = count;
    CaseRun<C> run(c, settings);
    const NamedTensors start = copies(trainable_parameters(run.model()));
    run.train();

    auto concatenated = settings;
    concatenated.loader.batch_size *= count;
    const auto difference = first_difference(start, detail::train_by_hand(c, concatenated),
                                             copies(trainable_parameters(run.model())), options.tolerance);
    const auto runs = std::to_string(count) + " microbatches a window against their concatenation";
    if (auto found = detail::finding(runs, difference); !found.holds()) return found;
  }
  return {};
}

}  // namespace lockstep::testing
