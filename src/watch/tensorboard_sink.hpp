// TensorBoard event files in the run folder, one for each process that worked on the run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "lockstep/watch/sink.hpp"
#include "watch/append_file.hpp"
#include "watch/run_directory.hpp"

namespace lockstep {

/// Values and histograms under their names, and the configuration as the text `config`.
///
/// A tag's steps rise strictly, over all files of the folder: when a call begins at step S, what an earlier
/// process wrote for later steps is taken out of its files, and at S = 0 all of it. A value for a step that
/// its tag already has is left out. Other programs' files are left alone. Errors: FileError
/// `cannot-write-file`, `cannot-read-file`.
class TensorboardSink final : public Sink {
 public:
  /// `directory` must outlive the sink.
  explicit TensorboardSink(const RunDirectory& directory);

  void begin(const RunStart& start) override;
  void write(const LogEvent& event) override;
  void finish() override;

 private:
  [[nodiscard]] bool is_new(const std::string& tag, std::int64_t step) const;
  void append(std::string record);
  void take_back(std::int64_t first_step);

  const RunDirectory& directory_;
  std::map<std::string, std::int64_t> last_steps_;  // by tag
  bool files_are_known_ = false;
  std::filesystem::path path_;  // of this process's file
  std::optional<AppendFile> file_;
  bool has_version_ = false;
};

}  // namespace lockstep
