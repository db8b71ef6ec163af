// How ranks agree and share what they have. One process agrees with itself.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace lockstep {

/// Where in a run the ranks meet. All of them open the same phase, so a rank that fails knows which vote the
/// others wait in.
enum class Phase { start, window, optimizer_step, requests, evaluation, checkpoint, run_end, main_process_first };

/// What a rank brings to a phase. Of fixed size, so that it always fits what the others expect.
struct Vote {
  Phase phase = Phase::window;
  bool failed = false;           ///< it joins to say that it cannot go on
  bool stop = false;             ///< a stop was requested
  bool end = false;              ///< a hook asked for the run's normal end
  bool save = false;             ///< the state is to be saved, as far as it knows
  bool evaluate = false;         ///< an evaluation of all sets was asked for
  bool more_data = false;        ///< its epoch has another batch
  bool evaluate_again = false;   ///< the window's loss and gradients are asked for once more
  bool all_touched = true;       ///< every parameter got a gradient
  std::int64_t samples = 0;      ///< the window's denominator
  std::int64_t microbatches = 0; ///< that it ran in the window
  std::int64_t loss_unit = 0;    ///< see AccumulationWindow; 0: not known yet

  bool operator==(const Vote&) const = default;
};

/// A sum that is under way. Its tensor must not be touched before wait() has returned. Errors: those of Collectives.
class PendingSum {
 public:
  virtual ~PendingSum() = default;
  virtual void wait() = 0;
};

/// Every rank calls the same members in the same order, with tensors of the same shapes and types, from one thread.
///
/// Errors: RankError `rank-lost` when another rank has gone or does not answer in time, naming who does not answer to a
/// roll call. Afterwards usable() is false and nothing else may be called.
class Collectives {
 public:
  virtual ~Collectives() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  /// No rank was lost.
  [[nodiscard]] virtual bool usable() const = 0;
  /// Of what follows; returns the one before.
  virtual std::chrono::milliseconds set_timeout(std::chrono::milliseconds timeout) = 0;

  /// Every rank's vote, in rank order.
  [[nodiscard]] virtual std::vector<Vote> vote(const Vote& mine) = 0;
  /// The next vote() also sums this flat tensor of floats or doubles on the CPU, in place and in rank order: for what is
  /// so small that a message of its own costs more than what is in it. Of a rank that failed it takes zeros. All ranks
  /// call it before the same vote, the earlier the better.
  virtual void sum_with_vote(const at::Tensor& tensor) = 0;
  /// Every rank's bytes, in rank order; they may differ in length.
  [[nodiscard]] virtual std::vector<std::string> exchange(const std::string& mine) = 0;
  /// Gives all of them rank 0's values. Of any device and strides.
  virtual void broadcast(const std::vector<at::Tensor>& tensors) = 0;
  /// Starts to sum a contiguous tensor of numbers over the ranks, in place. In the order of the calls.
  [[nodiscard]] virtual std::unique_ptr<PendingSum> sum(const at::Tensor& tensor) = 0;
  virtual void barrier() = 0;

  /// The same ranks over connections of their own, for what the user's modules exchange inside a Step: a rank that fails
  /// there closes them, so that nobody waits for it.
  [[nodiscard]] virtual Collectives& inside_step() = 0;
  /// Closes the connections at once; whoever waits for this rank gets an error that gives `reason`.
  virtual void abandon(const std::string& reason) noexcept = 0;
};

class SingleProcess final : public Collectives {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int world_size() const override { return 1; }
  [[nodiscard]] bool usable() const override { return true; }
  std::chrono::milliseconds set_timeout(std::chrono::milliseconds timeout) override { return timeout; }
  [[nodiscard]] std::vector<Vote> vote(const Vote& mine) override { return {mine}; }
  void sum_with_vote(const at::Tensor&) override {}
  [[nodiscard]] std::vector<std::string> exchange(const std::string& mine) override { return {mine}; }
  void broadcast(const std::vector<at::Tensor>&) override {}
  [[nodiscard]] std::unique_ptr<PendingSum> sum(const at::Tensor&) override;
  void barrier() override {}
  [[nodiscard]] Collectives& inside_step() override { return *this; }
  void abandon(const std::string&) noexcept override {}
};

}  // namespace lockstep
