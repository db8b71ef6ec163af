// Autocast as a scope: matrix products and convolutions in a half type.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace lockstep {

/// While it lives, Torch's autocast computes in `type` on devices of this kind, in the thread that made it.
/// When it goes, on an exception too, what was there before is back.
///
/// Autocast keeps the casts it made of weights. They go when the scope opens and when it closes, also inside
/// another one: a cast kept over an update or an exchange of weights would be of other weights, without an
/// error.
class [[nodiscard]] AutocastScope {
 public:
  AutocastScope(at::DeviceType device, at::ScalarType type);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  at::DeviceType device_;
  bool enabled_before_;
  at::ScalarType type_before_;
};

}  // namespace lockstep
