// Work that nobody has to wait for.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace lockstep {

/// Runs a function on a thread of its own, which may outlive this object: what it uses must be its own. For
/// requests that never return when whoever answers them is frozen.
class Detached {
 public:
  enum class Outcome { running, returned, threw };

  explicit Detached(std::function<void()> body);

  /// As soon as it has ended, or when `limit` is over.
  [[nodiscard]] Outcome within(std::chrono::milliseconds limit) const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep
