// Where and how a run computes: device, precision, accumulation, seed, ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/batch.hpp"
#include "lockstep/ranks/agreement.hpp"
#include "lockstep/ranks/collectives.hpp"
#include "lockstep/ranks/launch.hpp"
#include "lockstep/tensors/backend_scope.hpp"
#include "lockstep/tensors/precision.hpp"

namespace lockstep {

class Settings;

struct AcceleratorOptions {
  Precision precision = Precision::fp32;
  /// Microbatches behind one update; the last window of an epoch may hold fewer.
  std::int64_t gradient_accumulation_steps = 1;
  /// Seeds Torch's generators when the Accelerator is made: build it before the model.
  std::uint64_t seed = 0;
  /// Unset: CUDA where it is available, else the CPU.
  std::optional<at::Device> device = {};
  /// Of fp16 and fp16_mixed alone, which scale losses with the defaults without it.
  std::optional<LossScalerOptions> loss_scaler = {};
  /// Torch's process-wide switches, for as long as the Accelerator lives.
  BackendSettings backend = {};
  /// Unset fields come from the launcher's variables; without any, the run has one rank.
  LaunchOptions launch = {};
  /// How long a rank waits for the others before it gives up.
  std::chrono::milliseconds rank_timeout = std::chrono::minutes(30);
  /// Gradients are summed over the ranks in slices of about this size.
  std::int64_t slice_bytes = 25 << 20;
  /// Send a slice as soon as its last gradient is there, while the backward pass goes on; else after it. The same bits.
  bool overlap_sync = true;
  /// Compare the order of collectives over the ranks, at the cost of one more for each: for finding a rank that leaves
  /// the common path.
  bool check_collectives = false;
};

/// Fills `options` from the section `key`, as Settings::read() does; a device is text, "cuda:1".
void read(Settings& settings, const std::string& key, AcceleratorOptions& options);

/// How the values of all ranks become one.
enum class Reduction { sum, mean };

/// Build it first: it seeds Torch's generators, so that the model's initial weights follow from the seed. Every rank
/// builds one, and waits in it for the others; a process whose launcher says nothing of ranks is the only one.
///
/// Errors: ConfigError `invalid-settings`, `invalid-launch`, `device-not-available`; RankError `ranks-not-joined`,
/// `rank-taken`, `ranks-differ`.
class Accelerator {
 public:
  explicit Accelerator(AcceleratorOptions options = {});

  [[nodiscard]] const AcceleratorOptions& options() const { return options_; }
  /// Which rank of how many this is.
  [[nodiscard]] const Launch& launch() const { return launch_; }
  [[nodiscard]] at::Device device() const { return *options_.device; }
  /// Device and floating-point type of parameters and batches.
  [[nodiscard]] Placement placement() const { return {device(), floating_type(options_.precision)}; }
  [[nodiscard]] int rank() const { return collectives_->rank(); }
  [[nodiscard]] int world_size() const { return collectives_->world_size(); }
  [[nodiscard]] bool is_main_process() const { return rank() == 0; }
  /// The first rank of its machine.
  [[nodiscard]] bool is_local_main_process() const { return launch_.local_rank == 0; }
  [[nodiscard]] Collectives& collectives() const { return *collectives_; }
  /// How what fails on one rank reaches the others.
  [[nodiscard]] Agreement& agreement() const { return *agreement_; }

  /// A line on standard output, once for all ranks.
  void print(std::string_view line) const;
  /// A line on standard output, once for all ranks of a machine.
  void print_on_each_machine(std::string_view line) const;

  // Every rank calls what follows, in the same order, and not while a Trainer trains: what is counted in training
  // belongs in StepOutput::metrics. Nothing is recorded for the backward pass. Errors: those of Collectives.

  void wait_for_everyone() const;
  /// The tensors of all ranks one behind the other, in rank order, on this rank's device; they may differ in their
  /// first dimension. Scalars become the elements of a vector. Errors: RankError `tensors-differ`.
  [[nodiscard]] at::Tensor gather(const at::Tensor& mine) const;
  [[nodiscard]] std::vector<double> gather(double mine) const;
  /// Element by element, as a new tensor; a mean of integers is a float. Errors: RankError `tensors-differ`.
  [[nodiscard]] at::Tensor reduce(const at::Tensor& mine, Reduction reduction = Reduction::sum) const;
  [[nodiscard]] double reduce(double mine, Reduction reduction = Reduction::sum) const;
  /// The sum of all totals over that of all counts, so that ranks count by what they have: for a mean whose terms are
  /// spread over the ranks. NaN if nothing was counted.
  [[nodiscard]] double reduce_mean(double total, double count) const;
  /// Calls `work` on rank 0 and, when it has returned there, on the others: for data that the first one prepares and
  /// all of them read. The others wait for up to `timeout` instead of rank_timeout.
  ///
  /// Errors: what `work` threw, on the rank that threw it; RankError `rank-failed` on the others.
  void main_process_first(const std::function<void()>& work,
                          std::chrono::milliseconds timeout = std::chrono::hours(24)) const;

 private:
  AcceleratorOptions options_;
  Launch launch_;
  std::shared_ptr<Collectives> collectives_;
  std::shared_ptr<Agreement> agreement_;
  std::shared_ptr<const BackendScope> backend_;
};

}  // namespace lockstep
