// Asking a run to stop at its next update, from another thread or from a signal.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>

namespace lockstep {

/// A request to stop, honoured at the next update boundary.
///
/// Must outlive every train() call that was given it, and its SignalScope. request(), reason() and clear()
/// may be called from any thread, but not from a signal handler.
class StopRequest {
 public:
  StopRequest() = default;
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Asks for a stop; the first reason stays.
  void request(std::string reason);

  /// Why a stop was asked, for example "SIGINT", or nothing. Cheap while nothing was asked: atomic loads
  /// alone.
  [[nodiscard]] std::optional<std::string> reason() const;

  /// Takes the request back, so that a later train() call runs.
  void clear();

  /// Turns catching off when it goes, and puts the former handlers back. What was caught stays in the
  /// StopRequest.
  class [[nodiscard]] SignalScope {
   public:
    ~SignalScope();
    SignalScope(const SignalScope&) = delete;
    SignalScope& operator=(const SignalScope&) = delete;

   private:
    friend class StopRequest;
    explicit SignalScope(StopRequest& owner);
    StopRequest& owner_;
  };

  /// From now on SIGINT, SIGTERM and SIGUSR1 (the warning many schedulers send) ask for a stop. The handler
  /// only sets a flag; a second SIGINT or SIGTERM takes the default action, which ends the process. One scope
  /// at a time in a process: a second one throws ConfigError `signals-already-caught`. The scope must end
  /// before this object does.
  SignalScope catch_signals();

 private:
  /// Turns a caught signal into the reason, unless there is one already. Needs mutex_.
  void absorb_signal() const;

  mutable std::mutex mutex_;
  mutable std::optional<std::string> reason_;
  mutable std::atomic<bool> asked_ = false;
  std::atomic<bool> catching_ = false;
};

}  // namespace lockstep
