// Asking a run to save at its next update and to go on, from another thread or from a signal.
#pragma once

#include <atomic>

namespace lockstep {

/// A request to save, honoured at the next update boundary.
///
/// Must outlive every train() call that was given it, and its SignalScope. request() and take() may be called from any
/// thread.
class SaveRequest {
 public:
  SaveRequest() = default;
  SaveRequest(const SaveRequest&) = delete;
  SaveRequest& operator=(const SaveRequest&) = delete;

  /// Asks for one save, however often it is called before the next update.
  void request() noexcept { asked_ = true; }

  /// Whether a save was asked for since the last call. Cheap while none was: atomic loads alone.
  [[nodiscard]] bool take() noexcept;

  /// Turns catching off when it goes, and puts the former handler back. What was caught stays in the SaveRequest.
  class [[nodiscard]] SignalScope {
   public:
    ~SignalScope();
    SignalScope(const SignalScope&) = delete;
    SignalScope& operator=(const SignalScope&) = delete;

   private:
    friend class SaveRequest;
    explicit SignalScope(SaveRequest& owner);
    SaveRequest& owner_;
  };

  /// From now on SIGUSR2 asks for a save; the handler only sets a flag. One scope at a time in a process: a second one
  /// throws ConfigError `save-signal-already-caught`. The scope must end before this object does.
  SignalScope catch_signal();

 private:
  std::atomic<bool> asked_ = false;
  std::atomic<bool> catching_ = false;
};

}  // namespace lockstep
