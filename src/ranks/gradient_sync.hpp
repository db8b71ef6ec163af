// Sums a window's gradients over the ranks, slice by slice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/optim/parameter_arena.hpp"
#include "lockstep/ranks/collectives.hpp"

namespace lockstep {

/// Cuts the gradients of an arena into slices of about `slice_bytes`, each whole parameters, and sums them in one fixed
/// order, which follows from the parameters' places in the model alone.
///
/// Armed, a slice is sent as soon as the last gradient of it is there and those before it were sent; the rest, and
/// what got no gradient, by send_rest(). Both ways sum the same slices in the same order, so they give the same bits.
/// In the separate layout slices are gathered in buffers of their own and only sent by send_rest().
///
/// A gradient that is one small slice is summed with the window's vote instead, if that was expected.
///
/// Ownership: refers to the arena and the collectives.
class GradientSync {
 public:
  /// `model_parameters`: all of the model, in its order; gradients arrive backwards in it.
  GradientSync(ParameterArena& arena, const NamedTensors& model_parameters, Collectives& collectives,
               std::int64_t slice_bytes, bool overlap);
  ~GradientSync();
  GradientSync(const GradientSync&) = delete;
  GradientSync& operator=(const GradientSync&) = delete;

  /// All ranks call it in this window, before its vote: small gradients are summed with that. Calling it twice does no
  /// more. Errors: those of Collectives.
  void expect_vote();
  /// Before the window's last backward pass. Errors, from backward(): StepError `gradient-after-sync` where a
  /// gradient that was sent is added to.
  void arm();
  /// After it.
  void disarm();
  /// Sends what has not been sent in this window. Errors: those of Collectives.
  void send_rest();
  /// Waits for all sums; they are in the arena's gradients then. `touched`: which members got a gradient on any rank.
  /// Opens the next window. Errors: those of Collectives.
  void wait(const std::vector<bool>& touched);
  /// Waits without a result.
  void drop();

  /// The elements of each slice, in the order they are sent.
  [[nodiscard]] std::vector<std::int64_t> layout() const;

 private:
  struct Slice;
  class Hook;

  void cut(std::int64_t slice_bytes);
  void order(const NamedTensors& model_parameters);
  void arrived(std::size_t member);
  void send(Slice& slice);
  /// Separate: where the gradient of each of its members lies in the slice.
  void each_part(const Slice& slice,
                 const std::function<void(std::size_t member, const at::Tensor& part)>& use) const;

  ParameterArena& arena_;
  Collectives& collectives_;
  std::vector<Slice> slices_;
  std::vector<std::size_t> slice_of_;  // of each member
  std::vector<char> here_;             // the member's gradient arrived in the armed pass
  std::size_t sent_ = 0;               // slices, from the first
  bool hooked_ = false;
  bool armed_ = false;
  bool small_ = false;
  bool with_vote_ = false;  // in this window
};

}  // namespace lockstep
