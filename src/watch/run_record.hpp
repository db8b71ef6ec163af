// run.json: where, when and from what a run was started, each time it was.
#pragma once

#include <set>
#include <string>

#include "lockstep/watch/sink.hpp"
#include "watch/run_directory.hpp"

namespace lockstep {

/// The name of this machine.
std::string host_name();

/// Adds this process to run.json, and the changes to the sources, if there are any, as diff.patch; later ones
/// that differ get names of their own. What earlier processes recorded stays.
class RunRecord {
 public:
  /// `directory` must outlive it.
  RunRecord(const RunDirectory& directory, bool record_git)
      : directory_(directory), record_git_(record_git) {}

  /// Only the first call for a run counts. Errors: FileError `cannot-write-file`.
  void begin(const RunStart& start);

 private:
  const RunDirectory& directory_;
  bool record_git_;
  std::set<std::string> recorded_;  // run ids
};

}  // namespace lockstep
