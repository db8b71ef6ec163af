// metrics.jsonl: every event of a run as one line of JSON, its histograms aside.
//
//   {"event":"train","step":20,"epoch":0,"samples":2560,"time":1764449000.1,"values":{"lr":0.001},"text":""}
//
// A line is one write(2) at the end of the file, so a crash tears at most the last one. A torn line stays,
// closed off before the next: a reader skips lines that are no JSON.
#pragma once

#include <filesystem>

#include "lockstep/watch/sink.hpp"
#include "watch/append_file.hpp"

namespace lockstep {

/// Appends to a file, created if absent. Errors: FileError `cannot-write-file`, from the constructor too.
class JsonlSink final : public Sink {
 public:
  explicit JsonlSink(std::filesystem::path path);

  void write(const LogEvent& event) override;
  void finish() override { file_.sync(); }

 private:
  AppendFile file_;
  bool at_line_start_;
};

}  // namespace lockstep
