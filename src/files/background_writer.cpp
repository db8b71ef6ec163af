#include "files/background_writer.hpp"

#include <signal.h>

#include <utility>

namespace lockstep {
namespace {

/// While it lives, this thread takes no signals, nor do the threads that it starts.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_ = {};
};

}  // namespace

std::filesystem::path run(CheckpointWriter& writer, const SaveJob& job) {
  auto folder = writer.save(job.checkpoint);
  for (const auto& name : job.names) writer.name(name, folder);
  if (job.keep) writer.retire(*job.keep, job.run_id);
  return folder;
}

BackgroundWriter::BackgroundWriter(CheckpointWriter& writer) : writer_(writer) {
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { work(); });
}

BackgroundWriter::~BackgroundWriter() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool BackgroundWriter::busy() const {
  const std::lock_guard lock(mutex_);
  return job_.has_value();
}

void BackgroundWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !job_; });
}

void BackgroundWriter::start(SaveJob job) {
  wait();
  job.checkpoint = staging_.stage(std::move(job.checkpoint));
  {
    const std::lock_guard lock(mutex_);
    job_ = std::move(job);
  }
  changed_.notify_all();
}

std::exception_ptr BackgroundWriter::take_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, nullptr);
}

void BackgroundWriter::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return job_ || ends_; });
    if (!job_) return;
    auto job = std::make_optional(std::move(*job_));
    lock.unlock();
    try {
      run(writer_, *job);
    } catch (...) {
      const std::lock_guard failing(mutex_);
      failure_ = std::current_exception();
    }
    // After a failure is known, before anybody is told that all is done, and not under the lock.
    job.reset();
    lock.lock();
    job_.reset();
    changed_.notify_all();
  }
}

}  // namespace lockstep
