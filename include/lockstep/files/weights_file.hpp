// Weights in one file, to hand on or to start from.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/optim/weight_average.hpp"
#include "lockstep/tensors/named_tensors.hpp"

namespace torch::nn {
class Module;
}

namespace lockstep {

/// Writes `path`, which ends in `.safetensors` or `.pt`: complete and durable, or as it was before. Missing
/// directories above it are created. Python reads it with `safetensors.torch.load_file(path)`, or as a dict with
/// `torch.load(path, weights_only=True)`. A `.pt` file has no place for metadata, and is not read here.
/// Errors: ConfigError `unknown-weights-format`, `no-place-for-metadata`, `cannot-store-tensor`, FileError
/// `cannot-write-file`, `cannot-create-directory`.
void save_weights(const std::filesystem::path& path, const NamedTensors& tensors,
                  const std::map<std::string, std::string>& metadata = {});

/// Reads all of `path`, which ends in `.safetensors`; the tensors are on the CPU.
/// Errors: ConfigError `unknown-weights-format`, FileError `cannot-read-file`, CheckpointError
/// `damaged-safetensors`.
[[nodiscard]] NamedTensors read_weights(const std::filesystem::path& path);

struct LoadWeightsOptions {
  /// Every tensor of the module must come from the file, and every one of the file must have its place in the module;
  /// without it, what has no counterpart is left alone.
  bool strict = true;
  /// Beginnings of names in the file and what stands for them in the module: {{"backbone.", "encoder."}}. Of several
  /// that fit, the longest counts.
  std::map<std::string, std::string> rename = {};
  /// Beginnings of names, as they are in the module, that are not loaded: {"head."}.
  std::vector<std::string> skip = {};
  /// Of a checkpoint folder: raw or ema.
  Weights weights = Weights::raw;
};

/// What load_weights() did, by names of the module; `left_over` by names of the file.
struct LoadedWeights {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;
  std::vector<std::string> left_over;
};

/// Puts weights into a module, to start a new run from them; to go on with a run, use TrainOptions::resume_from.
///
/// `path` is a .safetensors file or a checkpoint folder (`checkpoints/best`, say). Floating-point tensors are converted to
/// the module's type and device. All of it is compared first: on a misfit the module is as before. Call it before the
/// Trainer is made.
///
///     load_weights(*net, "pretrained.safetensors", {.rename = {{"module.", ""}}, .skip = {"head."}});
///
/// Errors: CheckpointError `weights-do-not-fit`, which lists every difference and what was probably meant;
/// ConfigError `no-averaged-weights`; those of read_weights(), and of a checkpoint that cannot be read.
LoadedWeights load_weights(torch::nn::Module& module, const std::filesystem::path& path,
                           const LoadWeightsOptions& options = {});

}  // namespace lockstep
