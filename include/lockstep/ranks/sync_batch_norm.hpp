// Batch normalisation over the batches of all ranks.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/options/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ranks/accelerator.hpp"

namespace lockstep {

/// What torch::nn::BatchNorm1d, 2d and 3d do, with mean and variance over the batches of all ranks: N ranks get what one
/// would get for their batches together, forward and backward. In eval mode, and with one rank, nothing is sent.
///
///     torch::nn::Conv2d conv{...};
///     ls::SyncBatchNorm norm{accelerator, torch::nn::BatchNormOptions(16)};
///
/// Input: [batch, features] or [batch, features, ...], floating; statistics of half types are taken in float. Every rank
/// calls it equally often in a Step, so each must have a batch in every round: see `sync-batch-norm-uneven`. Refers to
/// the accelerator, which outlives it. The names of parameters and buffers are those of Torch's modules.
/// Source: Ioffe and Szegedy, "Batch Normalization", 2015, algorithm 1; Chan, Golub and LeVeque, "Updating formulae and
/// a pairwise algorithm for computing sample variances", 1979, for joining the ranks' statistics.
/// Errors: ConfigError `invalid-settings`, those of Collectives.
class SyncBatchNormImpl : public torch::nn::Module {
 public:
  SyncBatchNormImpl(Accelerator& accelerator, torch::nn::BatchNormOptions options);
  /// With the tensors of `norm` instead of new ones: a BatchNorm of these options.
  SyncBatchNormImpl(Accelerator& accelerator, torch::nn::BatchNormOptions options, const torch::nn::Module& norm);

  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  torch::nn::BatchNormOptions options;
  at::Tensor weight, bias;                // undefined unless options.affine()
  at::Tensor running_mean, running_var;   // undefined unless options.track_running_stats()
  at::Tensor num_batches_tracked;

 private:
  Accelerator& accelerator_;
};
TORCH_MODULE(SyncBatchNorm);

/// Puts a SyncBatchNorm in the place of every BatchNorm1d, 2d and 3d in a torch::nn::Sequential of `model`, with the same
/// parameters, buffers, mode and names. Call it before the optimizer and the Trainer are made.
///
/// A module that a class holds as a member of its own type cannot be exchanged from outside; declare it as SyncBatchNorm.
/// Errors: ConfigError `invalid-settings`, naming all such modules; nothing is changed then.
void convert_sync_batch_norm(torch::nn::Module& model, Accelerator& accelerator);

namespace detail {

/// Whether `module`, or a module below it, exchanges statistics.
[[nodiscard]] bool has_sync_batch_norm(const torch::nn::Module& module);

}  // namespace detail

}  // namespace lockstep
