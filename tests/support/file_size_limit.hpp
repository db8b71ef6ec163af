// A limit on the size of files, as a disk that takes no more bytes.
#pragma once

#include <signal.h>
#include <sys/resource.h>

#include <cstdint>

namespace lockstep::test {

/// While it lives, no file of this process grows beyond `bytes`; writing more fails with EFBIG, after a short
/// write.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(std::uint64_t bytes) : handler_(::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  sighandler_t handler_;
  rlimit before_ = {};
};

}  // namespace lockstep::test
