// Asking a run to stop at its next update, from another thread or from a signal.
#pragma once

#include <atomic>
#include <optional>
#include <string>

namespace lockstep {

/// A request to stop, honoured at the next update boundary.
///
/// Lives as long as every train() call that was given it. request() and reason() may be called from any thread.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Asks for a stop; the first reason stays.
  void request(std::string reason);

  /// Why a stop was asked, or nothing. Cheap: one atomic load while nothing was asked.
  [[nodiscard]] std::optional<std::string> reason() const;

  /// Takes the request back, so that a later train() call runs.
  void clear();

  /// Turns catching off when it goes, and puts the former handlers back.
  class [[nodiscard]] SignalScope {
   public:
    ~SignalScope();
    SignalScope(const SignalScope&) = delete;
    SignalScope& operator=(const SignalScope&) = delete;

   private:
    friend class StopRequest;
    explicit SignalScope(StopRequest* owner);
    StopRequest* owner_;
  };

  /// From now on SIGINT, SIGTERM and SIGUSR1 (the warning many schedulers send) ask for a stop. The handler only sets
  /// a flag; a second SIGINT or SIGTERM takes the default action, which ends the process. One scope at a time in a
  /// process: a second one throws ConfigError `signals-already-caught`.
  SignalScope catch_signals();

 private:
  struct Shared;
  Shared* shared_;
};

}  // namespace lockstep
