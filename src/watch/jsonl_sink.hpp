// metrics.jsonl: every event of a run as one line of JSON.
//
//   {"event":"train","step":20,"epoch":0,"samples":2560,"time":1764449000.1,"values":{"lr":0.001},"text":""}
//
// `time` is in seconds since 1970. A line is one write(2) at the end of the file, so a crash tears at most
// the last one. A torn line stays, closed off before the next: a reader skips lines that are no JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/posix_file.hpp"
#include "lockstep/watch/sink.hpp"

namespace lockstep {

/// Appends to a file, created if absent. A full disk must not stop the training: events that cannot be
/// written are counted, and `warn` is told at the first one and at the end. Throws FileError
/// `cannot-write-file` when constructed.
class JsonlSink final : public Sink {
 public:
  JsonlSink(std::filesystem::path path, std::function<void(const std::string&)> warn);

  void write(const LogEvent& event) override;
  void finish() override;

 private:
  std::filesystem::path path_;
  std::function<void(const std::string&)> warn_;
  FileDescriptor file_;
  bool at_line_start_ = true;
  std::int64_t lost_ = 0;
};

}  // namespace lockstep
