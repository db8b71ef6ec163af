// Parameters that are not trained, always or in some epochs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/loop/hooks.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// No parameter of the module gets gradients, until unfreeze(). Before the optimizer is built, this leaves
/// them out of weight_decay_groups() and of the run for good; to train them later in the run, use
/// FreezeEpochs.
void freeze(torch::nn::Module& module);
void unfreeze(torch::nn::Module& module);

/// Keeps a part of the model as it is in some epochs: no gradients, no update, no decay; momentum waits. Its
/// buffers, those of batch-norm say, still move in train mode.
///
/// Which epochs depends on the run's epoch alone, so a resumed run does the same. When train() ends, the part
/// is trainable.
///
/// Ownership: refers to the module's parameters, those that are trainable now; the optimizer holds them as
/// others.
///
///     FreezeEpochs hook(*net->backbone, {.end = 3});       // the head alone in the first three epochs
///
/// Errors: ConfigError `invalid-settings`.
class FreezeEpochs final : public Hook {
 public:
  struct Epochs {
    std::int64_t begin = 0;                ///< the first one that is frozen, counted from 0
    std::optional<std::int64_t> end = {};  ///< the first one that is not any more; unset: frozen to the end
  };

  FreezeEpochs(torch::nn::Module& module, Epochs epochs);

  /// A run may go on inside an epoch.
  void run_begin(Run& run) override { epoch_begin(run); }
  void epoch_begin(Run& run) override;
  void error(Run& run, const std::exception_ptr& error) override;
  void run_end(Run& run) override;

 private:
  void set_trainable(bool trainable);

  std::vector<at::Tensor> parameters_;
  Epochs epochs_;
};

}  // namespace lockstep
