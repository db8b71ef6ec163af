// A named range in what Torch's profilers record.
#pragma once

#include <ATen/record_function.h>

#include <optional>
#include <utility>

namespace lockstep {

/// While it lives, profilers and other callbacks of at::RecordFunction see the user scope `name`, a literal. What
/// RECORD_USER_SCOPE does, at a third of its cost while nobody listens: about a hundred instructions.
///
///     const ProfilerRange range("lockstep::update");
class [[nodiscard]] ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) {
    auto listeners = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!listeners) [[likely]] return;
    function_.emplace(std::move(*listeners));
    function_->before(name);
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  std::optional<at::RecordFunction> function_;
};

}  // namespace lockstep
